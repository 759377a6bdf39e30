// Command latency measures how long a guest and the daemon wait for a VMM whose vCPUs are busy, by
// how many threads of the VMM may run Go code (vmm.MaxProcs): a read from a disk, a round trip of a
// vsock stream, a write fault while a live branch is under way, and a request to the VMM. The load
// is vCPUs that compute and never leave their guest, or that leave it again and again.
//
// The guest is Linux with Python, or with -guest=stub user-mode code, which runs on hosts whose KVM
// cannot run Linux and has no driver for vsock. VMMs of all builds take turns. They have no jail;
// bench/fork measures what one costs. Tables go to standard output, progress to standard error, the
// figures as JSON to the file -o. scripts/bench runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// bench is one run of this program.
type bench struct {
	*lab.Program
	guestName, vmm            string
	procs                     lab.Numbers
	rounds, samples, branches int
	host                      *lab.Daemon
	builds                    []build
}

// build is one of forkd-vmm.
type build struct {
	procs int
	vmms  vmpool.VMMs
}

// headStart is longer than a machine runs before its vCPUs come after the host.
const headStart = 1200 * time.Millisecond

// vcpus are those of the guest: one that measures, and the load.
const vcpus = 5

// load is what other vCPUs do meanwhile.
type load struct {
	vcpus  int
	leaves bool // they leave the guest again and again; else they compute
}

func (l load) String() string {
	switch {
	case l.vcpus == 0:
		return "none"
	case l.leaves:
		return fmt.Sprint(l.vcpus, " leave")
	}
	return fmt.Sprint(l.vcpus, " spin")
}

var loads = []load{{}, {1, false}, {2, false}, {4, false}, {1, true}, {2, true}, {4, true}}

// Kinds of what is measured.
const (
	blockRead  = "block read"
	vsockTrip  = "vsock round trip"
	writeFault = "write fault"
	request    = "request"
)

// result is samples in microseconds by kind.
type result map[string][]float64

// guest measures.
type guest interface {
	name() string
	measure(context.Context, build, load) (result, error)
}

func main() {
	b := &bench{Program: lab.NewProgram("latency", 10*time.Minute, "no new round begins")}
	flag.StringVar(&b.guestName, "guest", "linux", "linux, or stub: user-mode code without an operating system")
	flag.StringVar(&b.vmm, "vmm", "", "path of bench/unjailed, without the number of threads that ends it")
	b.procs = lab.Numbers{List: []int{1, 2}, Min: 1, Max: 4}
	flag.Var(&b.procs, "procs", "threads for Go code, as scripts/bench builds them: 1, 2 or 4")
	flag.IntVar(&b.rounds, "rounds", 3, "turns of each build with each load")
	flag.IntVar(&b.samples, "samples", 1000, "reads, round trips and requests in each turn")
	flag.IntVar(&b.branches, "branches", 3, "branches in each turn")
	b.Main(b.check, b.measure)
}

func (b *bench) check() error {
	const most = resultsSize/4 - 1
	switch {
	case b.guestName != "linux" && b.guestName != "stub":
		return fmt.Errorf("-guest %q: want linux or stub", b.guestName)
	case b.vmm == "" || len(b.procs.List) == 0:
		return errors.New("-vmm wants a path, -procs a number")
	case b.rounds < 1 || b.samples < 1 || b.samples > most || b.branches < 1:
		return fmt.Errorf("-rounds and -branches want 1 or more, -samples 1 to %d", most)
	}
	return nil
}

func (b *bench) measure(ctx context.Context) (*report.Report, error) {
	var undo cleanup.Stack
	defer undo.Run()
	host, err := lab.Host()
	if err == nil && b.guestName == "linux" && host.Accel == lab.AccelPVM {
		err = lab.ErrUnfit
	}
	if err != nil {
		return nil, err
	}
	if b.host, err = lab.NewDaemon(host, &undo); err != nil {
		return nil, err
	}
	for _, n := range b.procs.List {
		bin, err := lab.CopyBinary(b.host.Dir, b.vmm+strconv.Itoa(n))
		if err != nil {
			return nil, err
		}
		b.builds = append(b.builds, build{n, vmpool.Processes{Bin: bin}})
	}
	newGuest := b.newLinux
	if b.guestName == "stub" {
		newGuest = b.newStub
	}
	g, err := newGuest(ctx, &undo)
	if err != nil {
		return nil, err
	}
	t := newTally()
	for round := range b.rounds {
		if b.TimeIsUp() {
			b.Progress("the time of -budget is up after %d rounds", round)
			break
		}
		for _, l := range loads {
			b.Progress("round %d of %d, load: %s", round+1, b.rounds, l)
			builds := slices.Clone(b.builds)
			if round%2 == 1 {
				slices.Reverse(builds)
			}
			for _, of := range builds {
				r, err := g.measure(ctx, of, l)
				if err != nil {
					return nil, err
				}
				t.add(l, of, r)
			}
		}
	}
	r := b.Report(host)
	r.Tables = t.tables(g.name(), b.procs.List)
	return r, nil
}

// timeRequests times requests that have nothing to do: to resume a machine that runs.
func timeRequests(ctx context.Context, v vmpool.VMM, n int) ([]float64, error) {
	samples := make([]float64, n)
	for i := range samples {
		begin := time.Now()
		if err := v.Resume(ctx); err != nil {
			return nil, err
		}
		samples[i] = micros(time.Since(begin))
	}
	return samples, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
