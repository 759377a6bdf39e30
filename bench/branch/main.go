// Command branch measures what it costs to branch and roll back a running sandbox, and to spawn from a chain of
// snapshots. A guest keeps a given number of pages dirty without a pause while it is branched live, by diff and in full.
//
// It drives forkd-vmm processes as the daemon does, without the daemon's store: snapshots are open files on tmpfs, so
// flushing to disk is not measured. Tables go to standard output, progress to standard error, the figures as JSON to
// the file -o. It needs KVM that runs Linux guests; scripts/bench runs it in the machine where that is missing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/image"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// options are the flags. Sizes are in MiB.
type options struct {
	memory, dirty []int
	samples       int
	depths        []int
	spawns        int
	budget        time.Duration
	out           string
}

func main() {
	o, err := parseFlags()
	if err != nil {
		fmt.Fprintf(os.Stderr, "branch: %v\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "branch: %v\n", err)
		os.Exit(lab.ExitCode(err))
	}
}

func parseFlags() (*options, error) {
	o := &options{}
	memory := flag.String("memory", "512,1536", "guest RAM in MiB; 4096 wants a host with 8 GiB")
	dirty := flag.String("dirty", "1,30,300", "MiB that the guest keeps dirty")
	depths := flag.String("depths", "0,10,32", "chain depths to spawn from; empty: none")
	flag.IntVar(&o.samples, "samples", 3, "branches of each mode, and rollbacks")
	flag.IntVar(&o.spawns, "spawns", 10, "spawns from each depth")
	flag.DurationVar(&o.budget, "budget", 5*time.Minute, "begin no new row after this time; it is left out")
	flag.StringVar(&o.out, "o", "", "file for the figures as JSON; empty: none")
	flag.Parse()
	var err error
	for _, f := range []struct {
		name, text string
		to         *[]int
	}{{"-memory", *memory, &o.memory}, {"-dirty", *dirty, &o.dirty}, {"-depths", *depths, &o.depths}} {
		if *f.to, err = numbers(f.text); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if flag.NArg() > 0 || o.samples < 1 || o.spawns < 1 {
		return nil, errors.New("-samples and -spawns want 1 or more, and there are no arguments")
	}
	return o, nil
}

// numbers parses numbers with commas between them.
func numbers(text string) ([]int, error) {
	var out []int
	for field := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		v, err := strconv.Atoi(field)
		if err != nil || v < 0 {
			return nil, fmt.Errorf("%q: want numbers with commas between them", text)
		}
		out = append(out, v)
	}
	return out, nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "branch: "+format+"\n", args...) }

func run(ctx context.Context, o *options) error {
	until := time.Now().Add(o.budget)
	var undo cleanup.Stack
	defer undo.Run()
	host, err := lab.Host()
	if err != nil {
		return err
	}
	if host.Accel == lab.AccelPVM {
		return lab.ErrUnfit
	}
	l, err := newLab(&undo)
	if err != nil {
		return err
	}
	r := &report.Report{Bench: "branch", Time: time.Now().UTC(), Host: host}
	var rows []*row
	skipped := 0
	for i, mib := range o.memory {
		l.shape = vmmproto.Machine{MemoryBytes: uint64(mib) << 20, VCPUs: 1, Template: lab.Template(host)}
		if i > 0 && time.Now().After(until) {
			skipped += len(o.dirty)
			continue
		}
		progress("%d MiB: boot and warm up a parent", mib)
		base, err := l.bake(ctx)
		if err != nil {
			return err
		}
		// Depths first: they are few, and the rows below fill the time that is left.
		if i == 0 && len(o.depths) > 0 {
			progress("chain of %d snapshots", max(0, o.depths[len(o.depths)-1]))
			t, err := l.depthTable(ctx, base, o)
			if err != nil {
				return err
			}
			r.Tables = append(r.Tables, t)
		}
		for _, dirty := range o.dirty {
			if len(rows) > 0 && time.Now().After(until) {
				skipped++
				continue
			}
			progress("%d MiB, %d MiB dirty", mib, dirty)
			w := &row{memoryMiB: mib, dirtyMiB: dirty}
			if err := w.measure(ctx, l, base, o.samples); err != nil {
				return err
			}
			rows = append(rows, w)
		}
	}
	if skipped > 0 {
		progress("the time of -budget is up: %d rows left out", skipped)
	}
	r.Tables = append(tables(rows, skipped), r.Tables...)
	if _, err := r.WriteTo(os.Stdout); err != nil {
		return err
	}
	if o.out == "" {
		return nil
	}
	return r.Save(o.out)
}

// newLab finds what VMs are made of.
func newLab(undo *cleanup.Stack) (*vmLab, error) {
	assets, err := lab.Assets()
	if err != nil {
		return nil, err
	}
	l := &vmLab{kernel: assets.Cloud}
	if l.image, err = image.Open(assets.Images["python-numpy"]); err != nil {
		return nil, err
	}
	if l.dir, err = lab.TempDir("/tmp", undo); err != nil {
		return nil, err
	}
	if l.ram, err = lab.TempDir("/dev/shm", undo); err != nil {
		return nil, err
	}
	l.bin, err = lab.CopyBinary(l.dir, assets.VMM)
	return l, err
}
