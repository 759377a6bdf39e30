// Command scale measures a daemon with many sandboxes: how long it takes to start with 100,000
// suspended sandboxes, and how long requests take then. It also keeps many children alive.
//
// The API, the sandbox manager and the store are those of the daemon, but the VMs are faked
// (package apirig). So the figures show what the daemon's own data structures and files cost, and
// not the cost of VMs and guests. All files are in a tmpfs, /dev/shm by default, so the figures do
// not contain the time of a disk.
//
// The command makes one suspended sandbox through the API and copies its files. Tables go to
// standard output, progress to standard error, and all figures as JSON to the file -o. scripts/bench
// runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/host/vmfake"
)

// options are the flags.
type options struct {
	suspended lab.Numbers
	alive     int
	resumes   int
	dir       string
}

// bench is one run of this program.
type bench struct {
	*lab.Program
	opt options
}

// samples is how many times a single request is repeated.
const samples = 20

func main() {
	b := &bench{Program: lab.NewProgram("scale", 20*time.Minute, "no new row begins")}
	b.opt.suspended = lab.Numbers{List: []int{1000, 10_000, 100_000}, Min: 1, Max: 1_000_000}
	flag.Var(&b.opt.suspended, "suspended", "numbers of suspended sandboxes, one row each")
	flag.IntVar(&b.opt.alive, "alive", 1000, "number of children that are alive too, in each row")
	flag.IntVar(&b.opt.resumes, "resumes", 1000, "how many suspended sandboxes are resumed, at most")
	flag.StringVar(&b.opt.dir, "dir", "/dev/shm", "a directory for all files: about 25 KiB for each sandbox")
	b.Main(b.opt.check, b.measure)
}

func (o *options) check() error {
	if o.alive < 1 || o.resumes < 1 {
		return errors.New("-alive and -resumes want 1 or more")
	}
	return nil
}

func (b *bench) measure(ctx context.Context) (*report.Report, error) {
	info, err := lab.Host()
	if err != nil && !errors.Is(err, lab.ErrUnfit) { // this program runs no VM, so ErrUnfit does not matter
		return nil, err
	}
	t := &report.Table{Title: fmt.Sprintf("A daemon with suspended sandboxes, and %d that are alive", b.opt.alive),
		Columns: []report.Column{{Name: "suspended"}, {Name: "what"}, {Name: "times"}, {Name: "p50 ms", Digits: 1},
			{Name: "CPU ms", Digits: 1}}}
	t.Notef("VMs are faked, and all files are in RAM; a page has %d sandboxes", pageSize)
	t.Notef("CPU: mean time of this process, which is both client and daemon; on a busy host it says more than the p50")
	for i, n := range b.opt.suspended.List {
		if i > 0 && b.TimeIsUp() {
			b.Progress("the time of -budget is up: %d numbers are left out", len(b.opt.suspended.List)-i)
			break
		}
		if err := b.row(ctx, t, n); err != nil {
			return nil, fmt.Errorf("%d suspended: %w", n, err)
		}
	}
	r := b.Report(info)
	r.Tables = append(r.Tables, t)
	return r, nil
}

// row measures a daemon with n suspended sandboxes, and adds the figures to t.
func (b *bench) row(ctx context.Context, t *report.Table, n int) (err error) {
	dir, err := os.MkdirTemp(b.opt.dir, "forkd-scale-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var ids []string
	err = during(dir, func(rig *apirig.Rig) error {
		one, err := suspendOne(ctx, rig)
		if err != nil {
			return err
		}
		if err := bakeMore(ctx, rig); err != nil {
			return err
		}
		b.Progress("%d suspended: copy the files of one", n)
		ids, err = multiply(dir, one.ID, n)
		return err // the rig now deletes its own sandbox, but not the copies
	})
	if err != nil {
		return err
	}
	b.Progress("%d suspended: start", n)
	begun := now()
	return during(dir, func(rig *apirig.Rig) error {
		m := &measurement{table: t, suspended: n}
		m.add("start", []cost{since(begun)})
		return b.requests(ctx, rig, m, ids)
	})
}

// during(dir, f) calls f and, while f runs, serves the API of a daemon whose files are in dir.
func during(dir string, f func(*apirig.Rig) error) error {
	return apirig.During("scale", func(t *apirig.Lifetime) error {
		all := &vmfake.VMMs{}
		return f(apirig.Start(t, apirig.Options{Dir: dir, Unchecked: true, Guest: vmfake.Guest{All: all},
			Prepare: func(v *vmfake.VMMs) { v.GuestDirty = 4096 }}))
	})
}

// measurement adds the figures for a given number of suspended sandboxes to a table.
type measurement struct {
	table     *report.Table
	suspended int
}

// cost is what one operation took.
type cost struct{ wall, cpu time.Duration }

// instant is a point in time: the time of the clock, and the CPU time that this process has used so
// far.
type instant struct {
	clock time.Time
	cpu   time.Duration
}

func now() instant {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	return instant{time.Now(), time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

func since(i instant) cost {
	n := now()
	return cost{n.clock.Sub(i.clock), n.cpu - i.cpu}
}

func (m *measurement) add(what string, costs []cost) {
	var wall []time.Duration
	var cpu time.Duration
	for _, c := range costs {
		wall, cpu = append(wall, c.wall), cpu+c.cpu
	}
	mean := float64(cpu) / float64(len(costs)) / float64(time.Millisecond)
	m.table.Add(m.suspended, what, len(costs), report.Cell(report.Quantile(report.Millis(wall...), 0.5)), mean)
}

// times(…) carries out an operation n times, and records the cost of each time.
func (m *measurement) times(what string, n int, do func(i int) error) error {
	var costs []cost
	for i := range n {
		begun := now()
		if err := do(i); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		costs = append(costs, since(begun))
	}
	m.add(what, costs)
	return nil
}

const parent = "scale"

// suspendOne makes a parent and a suspended child of it.
func suspendOne(ctx context.Context, rig *apirig.Rig) (s client.Sandbox, err error) {
	req := rig.Parent
	req.Tag = parent
	if _, err := rig.Bake(ctx, req); err != nil {
		return s, err
	}
	made, err := rig.Fork(ctx, client.ForkRequest{SnapshotTag: parent, N: 1})
	if err != nil {
		return s, err
	}
	if s, err = rig.Suspend(ctx, made.Sandboxes[0].ID); err == nil {
		rig.Store.Quiesce()
	}
	return s, err
}

// spare returns the tag of a snapshot that the program removes.
func spare(i int) string { return fmt.Sprintf("spare%d", i) }

func bakeMore(ctx context.Context, rig *apirig.Rig) error {
	for i := range samples {
		req := rig.Parent
		req.Tag = spare(i)
		if _, err := rig.Bake(ctx, req); err != nil {
			return err
		}
	}
	rig.Store.Quiesce()
	return nil
}

// dataOf returns the directory of a suspended sandbox, and snapshotOf that of a snapshot.
func dataOf(dir, id string) string      { return filepath.Join(dir, "data", id) }
func snapshotOf(dir, tag string) string { return filepath.Join(dir, "state", "snapshots", tag) }
