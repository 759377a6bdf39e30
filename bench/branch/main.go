// Command branch measures the cost of three things: branching and rolling back a running sandbox,
// branching one sandbox repeatedly, and forking from a chain of snapshots. The guest keeps writing
// a given number of pages while it is branched, in the modes live, diff and full.
//
// It uses the daemon's own sandbox manager, store and forkd-vmm processes, but not the REST API.
// Tables go to standard output, progress to standard error, and all figures as JSON to the file -o.
// The benchmark needs a KVM that runs Linux guests. Without one, scripts/bench runs it in the
// emulated host.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/store"
)

// recipe is the image of the guests.
const recipe = "python-numpy"

// bench is one run of this program.
type bench struct {
	*lab.Program
	memory, dirty, depths lab.Numbers // memory and dirty are in MiB; depths are numbers of snapshots
	samples, forks, line  int
	host                  *lab.Daemon
}

func main() {
	b := &bench{Program: lab.NewProgram("branch", 5*time.Minute, "no new row of the branch table begins; it is left out")}
	b.memory = lab.Numbers{List: []int{512, 1536}, Min: 64, Max: 1 << 20}
	b.dirty = lab.Numbers{List: []int{1, 30, 300}, Min: 1, Max: 1 << 20}
	b.depths = lab.Numbers{List: []int{0, 10, 31, 32}, Max: 200}
	flag.Var(&b.memory, "memory", "guest RAM in MiB; 4096 wants a host with 6 GiB")
	flag.Var(&b.dirty, "dirty", "MiB that the guest keeps dirty; empty: no branches of a busy guest")
	flag.Var(&b.depths, "depths", "chain depths to fork from, ascending; empty: none")
	flag.IntVar(&b.samples, "samples", 3, "branches of each mode, and rollbacks")
	flag.IntVar(&b.line, "line", 20, "branches of one sandbox that writes 1 MiB between them; 0: none")
	flag.IntVar(&b.forks, "forks", 10, "forks from each depth")
	b.Main(b.check, b.measure)
}

func (b *bench) check() error {
	if len(b.memory.List) == 0 || b.samples < 1 || b.forks < 1 || b.line < 0 {
		return errors.New("-memory wants a number, -samples and -forks want 1 or more, -line 0 or more")
	}
	for i := 1; i < len(b.depths.List); i++ {
		if b.depths.List[i] <= b.depths.List[i-1] {
			return errors.New("-depths: want them ascending")
		}
	}
	return nil
}

func (b *bench) measure(ctx context.Context) (*report.Report, error) {
	var undo cleanup.Stack
	defer undo.Run()
	host, err := lab.Host()
	if err == nil && host.Accel == lab.AccelPVM {
		err = lab.ErrUnfit
	}
	if err != nil {
		return nil, err
	}
	if b.host, err = lab.NewDaemon(host, &undo); err != nil {
		return nil, err
	}
	r := b.Report(host)
	var chain, line *report.Table
	var rows []*row
	skipped := 0
	for i, mib := range b.memory.List {
		if i > 0 && b.TimeIsUp() {
			skipped += len(b.dirty.List)
			continue
		}
		if err := b.bake(ctx, mib); err != nil {
			return nil, err
		}
		// Make the chain first, because measuring the rows below uses up the remaining time.
		if i == 0 && len(b.depths.List) > 0 {
			if chain, err = b.depthTable(ctx, mib); err != nil {
				return nil, err
			}
		}
		if i == 0 && b.line > 0 {
			if line, err = b.lineTable(ctx, mib); err != nil {
				return nil, err
			}
		}
		for _, dirty := range b.dirty.List {
			if len(rows) > 0 && b.TimeIsUp() {
				skipped++
				continue
			}
			w, err := b.newRow(ctx, mib, dirty)
			if err != nil {
				return nil, err
			}
			rows = append(rows, w)
		}
	}
	if len(rows) > 0 {
		r.Tables = tables(rows, skipped)
	}
	if line != nil {
		r.Tables = append(r.Tables, line)
	}
	if chain != nil {
		r.Tables = append(r.Tables, chain)
	}
	return r, nil
}

// parent returns the tag of the parent with mib MiB of RAM.
func parent(mib int) string { return fmt.Sprintf("parent-%d", mib) }

func (b *bench) bake(ctx context.Context, mib int) error {
	b.Progress("%d MiB: boot and warm up a parent", mib)
	return b.host.WithManager(lab.Options{}, func(m *lab.Manager) error {
		return b.host.Bake(ctx, m, parent(mib), recipe, uint64(mib))
	})
}

// drop removes a snapshot that has no descendants.
func (b *bench) drop(tag string) error {
	_, err := b.host.Store.Delete(tag, store.DeleteSingle)
	return err
}

// quantile returns a quantile of ds in milliseconds, or nil if ds is empty.
func quantile(ds []time.Duration, q float64) any {
	return report.Cell(report.Quantile(report.Millis(ds...), q))
}

// median returns the median of the values that are not NaN. NaN means that a value was not
// measured.
func median(values []float64) float64 {
	var known []float64
	for _, v := range values {
		if !math.IsNaN(v) {
			known = append(known, v)
		}
	}
	return report.Quantile(known, 0.5)
}
