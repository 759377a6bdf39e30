// Command fork measures the speed and the cost of forks from a warm parent. It measures CPU time,
// memory, and two times from the request: until the vCPUs run (clock i), and until the agent has
// confirmed (clock ii). For comparison, it measures the minimum that KVM requires of any VMM. The
// benchmark forks through the daemon's own sandbox manager, store and forkd-vmm processes. One
// table compares these forks with requests to the REST API. Other figures are the time to delete a
// sandbox, and how many sandboxes per second are possible.
//
// The guest is Linux with the recipe's warm interpreter. With -guest=stub it is a hundred bytes of
// user-mode code, for hosts whose KVM cannot run Linux (package stub). Tables go to standard
// output, progress to standard error, and all figures as JSON to the file -o. The command needs
// root, to empty page caches. scripts/bench runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/vm"
)

// options are the flags.
type options struct {
	guest, recipe string
	memoryMiB     uint64
	ns            lab.Numbers
	samples       int
	extents       int
	slots         uint
	coldAll       bool
	floorBin      string
	floorRuns     int
}

// bench is one run of this program.
type bench struct {
	*lab.Program
	opt   options
	host  *lab.Daemon
	guest *guest
}

func main() {
	b := &bench{Program: lab.NewProgram("fork", 6*time.Minute, "no new fork begins; rows without one stay blank")}
	b.opt.ns = lab.Numbers{List: []int{1, 10, 100}, Min: 1, Max: sandbox.MaxFork}
	flag.StringVar(&b.opt.guest, "guest", "linux", "linux, or stub: user-mode code without an operating system")
	flag.StringVar(&b.opt.recipe, "recipe", "python-numpy", "image of the Linux guest")
	flag.Uint64Var(&b.opt.memoryMiB, "memory", 512, "guest RAM in MiB, 64 to 3072")
	flag.UintVar(&b.opt.slots, "slots", 0, "volume slots of the guest, 0 to 8")
	flag.Var(&b.opt.ns, "n", "children per fork")
	flag.IntVar(&b.opt.samples, "samples", 20, "fork at least this many children for every row of the table")
	flag.IntVar(&b.opt.extents, "extents", 0, "with -guest=stub: so many more extents in the snapshot's memory map")
	flag.BoolVar(&b.opt.coldAll, "cold-all", false, "cold page caches also for the largest n")
	flag.StringVar(&b.opt.floorBin, "floor", "", "path of bench/floor; empty: no floor")
	flag.IntVar(&b.opt.floorRuns, "floor-runs", 100, "runs of the floor")
	b.Main(b.opt.check, b.measure)
}

func (o *options) check() error {
	switch {
	case o.guest != "linux" && o.guest != "stub":
		return fmt.Errorf("-guest %q: want linux or stub", o.guest)
	case o.memoryMiB < 64 || o.memoryMiB > 3072:
		return fmt.Errorf("-memory %d: want 64 to 3072", o.memoryMiB)
	case o.slots > vm.MaxVolumeSlots:
		return fmt.Errorf("-slots %d: want 0 to %d", o.slots, vm.MaxVolumeSlots)
	case len(o.ns.List) == 0 || o.samples < 1 || o.floorRuns < 1:
		return errors.New("-n wants a number, -samples and -floor-runs want 1 or more")
	case o.extents < 0 || o.extents > lab.MaxStubExtents || o.extents > 0 && o.guest != "stub":
		return fmt.Errorf("-extents %d: want 0 to %d, and -guest=stub", o.extents, lab.MaxStubExtents)
	}
	return nil
}

func (b *bench) measure(ctx context.Context) (*report.Report, error) {
	var undo cleanup.Stack
	defer undo.Run()
	o := &b.opt
	host, err := lab.Host()
	if err == nil && o.guest == "linux" && host.Accel == lab.AccelPVM {
		err = lab.ErrUnfit
	}
	if err != nil {
		return nil, err
	}
	if b.host, err = lab.NewDaemon(host, &undo); err != nil {
		return nil, err
	}
	if b.guest = linuxGuest(b.host, o.recipe, o.memoryMiB, o.slots); o.guest == "stub" {
		b.guest = stubGuest(b.host, o.memoryMiB, o.extents, o.slots)
	}
	r := b.Report(host)
	var f *floor
	if o.floorBin != "" {
		b.Progress("floor: %d runs, then bursts", o.floorRuns)
		bin, err := lab.CopyBinary(b.host.Dir, o.floorBin)
		if err != nil {
			return nil, err
		}
		if f, err = measureFloor(ctx, bin, o.memoryMiB<<20, o.floorRuns, o.ns.List); err != nil {
			return nil, err
		}
		r.Tables = append(r.Tables, f.table())
	}
	b.Progress("baking %s", b.guest.name)
	if err := b.withManager(0, func(m *lab.Manager) error { return b.guest.bake(ctx, m) }); err != nil {
		return nil, err
	}
	cells, err := b.cells(ctx)
	r.Tables = append(r.Tables, b.tables(cells, f)...)
	if err != nil {
		return r, err
	}
	rows, err := b.countAll(ctx)
	r.Tables = append(r.Tables, countsTable(rows))
	if err != nil {
		return r, err
	}
	paths, err := b.measurePaths(ctx)
	r.Tables = append(r.Tables, b.pathsTable(paths))
	if err != nil || o.guest == "stub" || b.TimeIsUp() {
		return r, err
	}
	b.Progress("reading what children have written")
	p, err := b.readPages(ctx)
	if err == nil {
		r.Tables = append(r.Tables, p.table())
	}
	return r, err
}

// cells measures all combinations of parameters, until the time is up.
func (b *bench) cells(ctx context.Context) ([]*cell, error) {
	o := &b.opt
	cells := matrix(o)
	for i, c := range cells {
		if b.TimeIsUp() {
			b.Progress("the time of -budget is up: %d rows stay blank", len(cells)-i)
			break
		}
		b.Progress("%d/%d: n=%d, pool %s, page cache %s", i+1, len(cells), c.n, c.pool(), c.page())
		size := 0
		if c.poolWarm {
			size = c.n
		}
		if err := b.withManager(size, func(m *lab.Manager) error {
			return c.run(ctx, m, o.samples, b.Deadline(), !c.poolWarm && !c.coldPage && c.n == largest(o.ns.List))
		}); err != nil {
			return nil, err
		}
	}
	return cells, nil
}

func (b *bench) withManager(pool int, f func(*lab.Manager) error) error {
	return b.host.WithManager(lab.Options{Pool: pool, Guest: b.guest.client}, f)
}
