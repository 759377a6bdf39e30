// Command fork measures how fast children fork from a warm parent, and what they cost: request → vCPUs entered (clock
// i), → agent confirmed (clock ii), CPU time and memory, beside the least that KVM lets any VMM do. It forks through
// the daemon's own sandbox manager, store and forkd-vmm processes; the REST API is not part of it.
//
// The guest is Linux with the recipe's warm interpreter, or with -guest=stub a hundred bytes of user-mode code, which
// runs on hosts whose KVM cannot run Linux (package stub). Tables go to standard output, progress to standard error,
// the figures as JSON to the file -o. It needs root for cold page caches. scripts/bench runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/disklayer"
	"github.com/forkd/forkd/internal/metrics"
	"github.com/forkd/forkd/internal/sandbox"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmtest"
)

// options are the flags.
type options struct {
	guest, recipe string
	memoryMiB     uint64
	ns            []int
	samples       int
	coldAll       bool
	floorBin      string
	floorRuns     int
	budget        time.Duration
	out           string
}

func main() {
	o, err := parseFlags()
	if err != nil {
		fmt.Fprintf(os.Stderr, "fork: %v\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "fork: %v\n", err)
		os.Exit(lab.ExitCode(err))
	}
}

func parseFlags() (*options, error) {
	o := &options{}
	flag.StringVar(&o.guest, "guest", "linux", "linux, or stub: user-mode code without an operating system")
	flag.StringVar(&o.recipe, "recipe", "python-numpy", "image of the Linux guest")
	flag.Uint64Var(&o.memoryMiB, "memory", 512, "guest RAM in MiB, 64 to 3072")
	n := flag.String("n", "1,10,100", "children per fork")
	flag.IntVar(&o.samples, "samples", 20, "fork at least this many children for every row of the table")
	flag.BoolVar(&o.coldAll, "cold-all", false, "cold page caches also for the largest n")
	flag.StringVar(&o.floorBin, "floor", "", "path of bench/floor; empty: no floor")
	flag.IntVar(&o.floorRuns, "floor-runs", 100, "runs of the floor")
	flag.DurationVar(&o.budget, "budget", 6*time.Minute, "begin no new fork after this time; rows without one stay blank")
	flag.StringVar(&o.out, "o", "", "file for the figures as JSON; empty: none")
	flag.Parse()
	for _, text := range strings.Split(*n, ",") {
		v, err := strconv.Atoi(text)
		if err != nil || v < 1 || v > sandbox.MaxFork {
			return nil, fmt.Errorf("-n %q: want numbers from 1 to %d with commas between them", *n, sandbox.MaxFork)
		}
		o.ns = append(o.ns, v)
	}
	if o.guest != "linux" && o.guest != "stub" {
		return nil, fmt.Errorf("-guest %q: want linux or stub", o.guest)
	}
	if o.memoryMiB < 64 || o.memoryMiB > 3072 {
		return nil, fmt.Errorf("-memory %d: want 64 to 3072", o.memoryMiB)
	}
	if flag.NArg() > 0 || o.samples < 1 || o.floorRuns < 1 {
		return nil, errors.New("-samples and -floor-runs want 1 or more, and there are no arguments")
	}
	return o, nil
}

// bench is one run of this program.
type bench struct {
	opt   *options
	host  report.Host
	dir   string // for sockets and disk tops
	store *store.Store
	vmms  processes
	guest *guest
	made  int // managers so far
}

func run(ctx context.Context, o *options) error {
	begin := time.Now()
	var undo cleanup.Stack
	defer undo.Run()
	b, err := newBench(o, &undo)
	if err != nil {
		return err
	}
	r := &report.Report{Bench: "fork", Time: time.Now().UTC(), Host: b.host}
	var f *floor
	if o.floorBin != "" {
		progress("floor: %d runs, then bursts", o.floorRuns)
		bin, err := lab.CopyBinary(b.dir, o.floorBin)
		if err != nil {
			return err
		}
		if f, err = measureFloor(ctx, bin, o.memoryMiB<<20, o.floorRuns, o.ns); err != nil {
			return err
		}
		r.Tables = append(r.Tables, f.table())
	}
	progress("baking %s", b.guest.name)
	if err := b.withManager(0, func(m *sandbox.Manager) error { return b.guest.bake(ctx, m) }); err != nil {
		return err
	}
	cells := matrix(o)
	for i, c := range cells {
		if time.Since(begin) > o.budget {
			progress("the time of -budget is up: %d rows stay blank", len(cells)-i)
			break
		}
		progress("%d/%d: n=%d, pool %s, page cache %s", i+1, len(cells), c.n, c.pool(), c.page())
		size := 0
		if c.poolWarm {
			size = c.n
		}
		if err := b.withManager(size, func(m *sandbox.Manager) error {
			return c.run(ctx, m, o.samples, begin.Add(o.budget), !c.poolWarm && !c.coldPage && c.n == largest(o.ns))
		}); err != nil {
			return err
		}
	}
	r.Tables = append(r.Tables, b.tables(cells, f)...)
	if _, err := r.WriteTo(os.Stdout); err != nil {
		return err
	}
	if o.out == "" {
		return nil
	}
	return r.Save(o.out)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "fork: "+format+"\n", args...) }

// newBench sets up a store of its own; everything goes when undo runs.
func newBench(o *options, undo *cleanup.Stack) (*bench, error) {
	b := &bench{opt: o}
	var err error
	if b.host, err = lab.Host(); err != nil {
		return nil, err
	}
	if o.guest == "linux" && b.host.Accel == lab.AccelPVM {
		return nil, lab.ErrUnfit
	}
	assets, err := lab.Assets()
	if err != nil {
		return nil, err
	}
	if b.dir, err = lab.TempDir("/tmp", undo); err != nil {
		return nil, err
	}
	if b.vmms.bin, err = lab.CopyBinary(b.dir, assets.VMM); err != nil {
		return nil, err
	}
	ram, err := lab.TempDir("/dev/shm", undo)
	if err != nil {
		return nil, err
	}
	if b.store, err = store.Open(store.Config{Root: filepath.Join(b.dir, "store"), RAM: ram}); err != nil {
		return nil, err
	}
	undo.Add(func() { b.store.Close() })
	if o.guest == "stub" {
		b.guest = stubGuest(b.vmms, b.dir, lab.Template(b.host), b.host.Accel, o.memoryMiB)
		return b, nil
	}
	b.guest, err = linuxGuest(assets, o.recipe, o.memoryMiB)
	return b, err
}

// withManager calls f with a sandbox manager as the daemon has it, and ends its sandboxes and pool.
func (b *bench) withManager(pool int, f func(*sandbox.Manager) error) error {
	b.made++
	dir := filepath.Join(b.dir, strconv.Itoa(b.made))
	m, err := sandbox.New(sandbox.Config{
		Store: b.store, VMMs: b.vmms, Guest: b.guest.client, NewTop: disklayer.Format, Merge: disklayer.Merge,
		RunDir: filepath.Join(dir, "run"), DataDir: filepath.Join(dir, "data"),
		Template: lab.Template(b.host), Accel: b.host.Accel, Cmdline: vmtest.Cmdline(), PoolSize: pool,
		Observer: metrics.New("bench"), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return err
	}
	defer m.Close(true)
	return f(m)
}
