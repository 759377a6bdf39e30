package integration_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/test/soak"
	"github.com/forkd/forkd/test/torture"
)

var (
	soakDuration = flag.Duration("soak.duration", 60*time.Second, "how long clients work")
	soakClients  = flag.Int("soak.clients", 3, "how many clients")
	soakSeed     = flag.Uint64("soak.seed", 1, "of what clients and faults do")
	soakReport   = flag.String("soak.report", "", "file for the counts, as JSON, rewritten after every fault")
)

const (
	soakTag = "soak"
	// soakRest is how long a guest's writers pause after every write, in microseconds. Without long
	// pauses, the daemon would get too little of an emulated host's CPU.
	soakRest = 50_000
	// soakPatience is how long a run may continue after its clients have stopped: to undo the last
	// fault, to verify, and to remove everything.
	soakPatience = 12 * time.Minute
)

// Maximum numbers of sandboxes and of snapshots that a client keeps.
const (
	soakBoxes     = 2
	soakSnapshots = 2
)

// TestSoak lets clients use a daemon at random. Meanwhile it kills the daemon, forkd-net and VMMs,
// fills or stalls the disk, and fills the RAM of the layers. In the end, all acknowledged sandboxes
// and snapshots must exist with the right content. Every answer must be a success, or an error that
// a fault explains. Nothing may remain. Package test/soak has the clients. `make soak` runs this
// test for longer.
func TestSoak(t *testing.T) {
	f := open(t)
	x := newSoaking(t, f)
	hung := time.AfterFunc(*soakDuration+soakPatience, func() {
		x.write()
		_ = x.report.Print(os.Stdout)
		panic(fmt.Sprintf("seed %d: the run hangs", *soakSeed))
	})
	defer hung.Stop()
	base := x.fire.points[soakTag].Instant
	before := x.settled()
	x.run = soak.New(soak.Config{Daemon: x.d.Client, Base: soakTag, Size: guestSize, Clients: *soakClients,
		Boxes: soakBoxes, Snapshots: soakSnapshots, Seed: *soakSeed, Faults: x.faults, Report: x.report}, base)
	stop, stopped := make(chan struct{}), make(chan struct{})
	halt := sync.OnceFunc(func() { close(stop) })
	defer halt()
	go func() {
		defer close(stopped)
		x.run.Run(stop)
	}()
	x.harm(time.Now().Add(*soakDuration))
	halt()
	<-stopped
	x.run.Finish()
	x.compare(before)
}

// soaking is a run of TestSoak. Its methods end the test if a part other than the daemon fails.
// Failures of the daemon are recorded in the report.
type soaking struct {
	t      *testing.T
	d      *daemon
	disk   string // mount point of the file system with the state directory
	rng    *rand.Rand
	faults *soak.FaultLog
	report *soak.Report
	run    *soak.Soak
	fire   *fire // used to make the base
}

// newSoaking starts a daemon whose state is on a separate disk, and makes the snapshot from which
// clients fork.
func newSoaking(t *testing.T, f *fixture) *soaking {
	t.Helper()
	dir := filepath.Join(f.root, "k")
	x := &soaking{t: t, disk: filepath.Join(dir, "d"), rng: rand.New(rand.NewPCG(*soakSeed, 1<<32)),
		faults: soak.NewFaultLog(), report: soak.NewReport(*soakSeed, *soakClients, os.Stdout)}
	ram := filepath.Join(dir, "m")
	mountDisk(t, f.assets.Disk, x.disk)
	mount(t, ram, ramSize)
	// The disk reserve is small, so that the daemon accepts some requests even when the disk is
	// nearly full.
	x.d = f.start(t, withState(filepath.Join(x.disk, "s")), withRun(filepath.Join(dir, "r")), withRAM(ram),
		withArgs("--disk-reserve-mib", "16"))
	t.Cleanup(func() { // called before the daemon is stopped
		x.write()
		if err := x.report.Print(os.Stdout); err != nil {
			t.Error(err)
		}
		if x.report.Failed() {
			t.Errorf("seed %d: see what was found above", *soakSeed)
		}
	})
	x.fire = &fire{t: t, d: x.d, rng: x.rng, points: map[string]point{}, report: torture.NewReport(*soakSeed, io.Discard)}
	x.fire.makeBase()
	s := x.fire.fork(baseTag)
	x.d.sh(t, s.ID, "mkdir -p "+soak.Dir)
	p := x.fire.mark(s.ID, "rest", fmt.Sprint(soakRest))
	made, err := x.fire.branch(s.ID, soakTag, client.BranchRequest{Mode: "full"})
	x.fire.fail(err)
	x.fire.took(made, p)
	x.d.kill(t, s)
	x.fire.delete(baseTag, client.DeleteOptions{Force: true})
	x.fire.check(soakTag)
	x.d.crash(t) // all later daemons, with which this one is compared, also start after a crash
	x.d.launch(t)
	return x
}

func (x *soaking) write() {
	if err := x.report.Write(*soakReport, x.faults); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// audit compares the existing sandboxes and snapshots with the sandboxes and snapshots that were
// acknowledged to clients. Clients make no requests during the audit. Objects that were incomplete
// when a daemon was killed must have been removed.
func (x *soaking) audit() {
	x.t.Helper()
	x.run.Still(func(ids, tags map[string]bool) {
		boxes, err := x.d.Sandboxes(x.d.ctx(x.t, stepLimit))
		snaps, err2 := x.d.Snapshots(x.d.ctx(x.t, stepLimit))
		if err := errors.Join(err, err2); err != nil {
			x.t.Fatal(err)
		}
		for _, s := range boxes {
			if !ids[s.ID] {
				x.report.HalfMadeThing("nobody was told of sandbox %s: %+v", s.ID, s)
			}
		}
		for _, s := range snaps {
			if !s.Transient && s.Tag != soakTag && !tags[s.Tag] {
				x.report.HalfMadeThing("nobody was told of snapshot %s: %+v", s.Tag, s)
			}
		}
		x.d.audit(x.t)
	})
	x.report.Audited()
}
