package integration_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/test/rig"
	"github.com/forkd/forkd/test/torture"
	"github.com/forkd/forkd/test/torture/guest"
)

// tortureBranches is the default number of branches in a run. A run does every kind of round at
// least once, which may take more branches.
const tortureBranches = 12

var (
	tortureN      = flag.Int("torture.n", tortureBranches, "how many branches")
	tortureSeed   = flag.Uint64("torture.seed", 1, "of the choices")
	tortureReport = flag.String("torture.report", "", "file for the counts, as JSON, rewritten after every step")
)

// Depths of a line of descent, as the number of memory layers above the layers of the first
// snapshot.
const (
	wantDepth = 4 // a run fails if it does not reach this depth
	lineDepth = 5 // at this depth a line of descent ends, and its snapshots are verified
)

// TestTorture branches, forks, rolls back, suspends and removes sandboxes through the daemon. In
// the sandboxes, test/guest/torture writes as fast as it can. The test kills the daemon and VMMs in
// the middle of operations, and verifies every copy. A seed determines the operations, but not the
// instants at which they interrupt guest, VMM and daemon. Package test/torture does the same to
// VMMs without a daemon.
func TestTorture(t *testing.T) {
	f := open(t)
	dir := filepath.Join(f.root, "t")
	state := filepath.Join(dir, "s")
	mount(t, state, "size=1g") // a file system of its own, which the test may fill
	d := f.start(t, withState(state), withRun(filepath.Join(dir, "r")), withRAM(filepath.Join(dir, "m")))
	x := &fire{t: t, d: d, rng: rand.New(rand.NewPCG(*tortureSeed, 0)), points: map[string]point{},
		long: *tortureN > 4*tortureBranches, report: torture.NewReport(*tortureSeed, os.Stdout)}
	x.deck = rig.NewDeck(x.rng, rounds()...)
	t.Cleanup(func() {
		t.Logf("seed %d: %s", *tortureSeed, x.report.Line())
		x.write()
	})
	x.makeBase()
	free := x.freeBytes()
	x.newLine()
	for n := 0; x.report.Done() < *tortureN || x.report.DeepestChain < wantDepth || n < len(rounds()); n++ {
		x.step(x.deck.Draw())
		if x.own.depth >= lineDepth {
			x.endLine()
			x.newLine()
		} else if x.rng.IntN(2) == 0 {
			x.step(round{name: "descend", run: (*fire).descend})
		}
	}
	x.endLine()
	x.nothingLeft(free)
}

// fire is a run of TestTorture. Its methods end the test on any failure. Methods that return an
// error may be called concurrently.
type fire struct {
	t      *testing.T
	d      *daemon
	rng    *rand.Rand
	deck   *rig.Deck[round]
	long   bool // there is time to compute digests of files
	names  int
	report *torture.Report

	source client.Sandbox   // the sandbox that is branched; it writes all the time
	own    point            // the instant of the snapshot that the source runs from
	saved  *point           // the instant of the source's latest suspended state
	last   string           // tag of the latest snapshot to which the source can be rolled back
	points map[string]point // by tag: the instant that children of the snapshot must have
}

// point is the instant of a snapshot.
type point struct {
	guest.Instant
	depth int // number of memory layers above the layers of the first snapshot
}

// round is one operation on the sandbox in fire.source. It may make several branches.
type round struct {
	name string
	run  func(*fire)
}

func rounds() []rig.Card[round] {
	return []rig.Card[round]{
		{Weight: 4, Do: round{"plain", (*fire).plain}},
		{Weight: 3, Do: round{"early", (*fire).early}},
		{Weight: 3, Do: round{"race", (*fire).race}},
		{Weight: 2, Do: round{"rollback", (*fire).rollback}},
		{Weight: 2, Do: round{"promote", (*fire).promote}},
		{Weight: 2, Do: round{"fork the source", (*fire).forkSource}},
		{Weight: 2, Do: round{"suspend", (*fire).suspend}},
		{Weight: 1, Do: round{"remove", (*fire).remove}},
		{Weight: 1, Do: round{"no room", (*fire).noRoom}},
		{Weight: 3, Do: round{"kill the daemon", (*fire).killDaemon}},
		{Weight: 1, Do: round{"apply", (*fire).apply}},
		{Weight: 2, Do: round{"kill the VMM", (*fire).killVMM}},
	}
}

func (x *fire) step(r round) {
	x.t.Helper()
	start := time.Now()
	x.report.Say("%s", r.name)
	r.run(x)
	x.write()
	x.t.Logf("%s: %.1f s, source of depth %d, %d snapshots", r.name, time.Since(start).Seconds(), x.own.depth,
		len(x.points))
}

func (x *fire) write() {
	if err := x.report.Write(*tortureReport); err != nil {
		x.t.Error(err)
	}
}

// newLine starts a child of the base and makes it the source.
func (x *fire) newLine() {
	x.t.Helper()
	x.source, x.own, x.saved, x.last = x.fork(baseTag), x.points[baseTag], nil, baseTag
}

// endLine kills the source, verifies all snapshots, and removes them in random order.
func (x *fire) endLine() {
	x.t.Helper()
	x.d.kill(x.t, x.source)
	x.checkAll()
	tags := slices.Sorted(maps.Keys(x.points))
	x.rng.Shuffle(len(tags), func(i, j int) { tags[i], tags[j] = tags[j], tags[i] })
	for i, tag := range tags {
		if tag == baseTag {
			continue
		}
		x.delete(tag, client.DeleteOptions{Force: true})
		if i == len(tags)/2 {
			x.checkAll() // also checks snapshots whose ancestors were removed
		}
	}
	x.d.audit(x.t)
	x.t.Log(x.report.Line())
}

// newTag returns a new, unique tag.
func (x *fire) newTag() string {
	x.names++
	return fmt.Sprintf("t%d", x.names)
}

// mode chooses the mode of a branch at random. Most branches are live.
func (x *fire) mode() string {
	switch n := x.rng.IntN(20); {
	case n < 12:
		return "live"
	case n < 17:
		return "diff"
	}
	return "full"
}

// millis returns a random time below n milliseconds.
func (x *fire) millis(n int) time.Duration {
	return time.Duration(x.rng.IntN(n*1000)) * time.Microsecond
}
