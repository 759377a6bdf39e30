package main

import (
	"context"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// row is one size of guest and dirty set.
type row struct {
	memoryMiB, dirtyMiB int
	modes               map[vmmproto.BranchMode]*figures
	rolled              []restored
}

// figures are the branches of one mode. Durations are one per branch.
type figures struct {
	pause, arm, ready, copied, stop []time.Duration
	dirtyMiB, faults                []float64
	loss                            []float64 // live: part of the source's speed that copying took
}

var modes = [...]vmmproto.BranchMode{vmmproto.BranchLive, vmmproto.BranchDiff, vmmproto.BranchFull}

// baseline is how long the load runs undisturbed before each branch.
const baseline = time.Second

// window is a branch as the load saw it.
type window struct {
	figures           *figures
	calm, begin, done time.Time
}

// measure forks a source, keeps it busy, branches it in all modes in turn, and rolls it back.
func (w *row) measure(ctx context.Context, l *vmLab, base *snap, samples int) error {
	source, _, err := l.fork(ctx, base)
	if err != nil {
		return err
	}
	defer source.Kill()
	if err := source.startLoad(ctx, w.dirtyMiB); err != nil {
		return err
	}
	w.modes = make(map[vmmproto.BranchMode]*figures)
	for _, mode := range modes {
		w.modes[mode] = &figures{}
	}
	var windows []window
	var last *branched
	for range samples {
		for _, mode := range modes {
			calm := time.Now()
			time.Sleep(baseline)
			b, err := source.branch(ctx, base, mode)
			if err != nil {
				return err
			}
			if last != nil {
				last.close()
			}
			last = b
			w.modes[mode].add(b)
			if mode == vmmproto.BranchLive {
				windows = append(windows, window{w.modes[mode], calm, b.begin, b.begin.Add(b.ready)})
			}
		}
	}
	guest, err := source.readClock(ctx)
	if err != nil {
		return err
	}
	marks, err := source.stopLoad(ctx)
	if err != nil {
		return err
	}
	for _, x := range windows {
		x.figures.loss = append(x.figures.loss, 1-rate(marks, guest, x.begin, x.done)/rate(marks, guest, x.calm, x.begin))
	}
	for range samples {
		r, err := source.restore(ctx, last.snap)
		if err != nil {
			return err
		}
		w.rolled = append(w.rolled, r)
	}
	last.close()
	return nil
}

func (f *figures) add(b *branched) {
	f.pause = append(f.pause, time.Duration(b.result.PauseNanos))
	f.arm = append(f.arm, time.Duration(b.result.ArmNanos))
	f.ready = append(f.ready, b.ready)
	f.copied = append(f.copied, time.Duration(b.copied.CopyNanos))
	f.stop = append(f.stop, time.Duration(b.copied.StopNanos))
	f.dirtyMiB = append(f.dirtyMiB, float64(b.result.Save.DirtyBytes)/(1<<20))
	f.faults = append(f.faults, float64(b.copied.Faults))
}

func quantile(ds []time.Duration, q float64) any {
	return report.Cell(report.Quantile(report.Millis(ds...), q))
}

// tables shows the rows; skipped is how many the time did not suffice for.
func tables(rows []*row, skipped int) []*report.Table {
	times := &report.Table{Title: "Branch of a guest that writes its dirty set all the time", Columns: []report.Column{
		{Name: "RAM MiB"}, {Name: "load MiB"}, {Name: "mode"}, {Name: "branches"}, {Name: "saved MiB", Digits: 0},
		{Name: "pause p50 ms", Digits: 1}, {Name: "pause p99 ms", Digits: 1}, {Name: "arm p50 ms", Digits: 1},
		{Name: "ready p50 ms", Digits: 1}, {Name: "copy p50 ms", Digits: 1}, {Name: "faults p50", Digits: 0},
		{Name: "stopped again p50 ms", Digits: 1}, {Name: "source slower by %", Digits: 0}}}
	times.Notef("arm: write-protecting (live) or copying (diff, full), part of the pause; ready: request → layer complete in RAM")
	times.Notef("source slower by: pages written from the request to ready, against the second before; "+
		"blank if one of them is shorter than %d times what reading the guest's clock takes", minGrains)
	ratios := &report.Table{Title: "Pause, live : diff : full (p50, live = 1)", Columns: []report.Column{
		{Name: "RAM MiB"}, {Name: "load MiB"}, {Name: "live", Digits: 1}, {Name: "diff", Digits: 1}, {Name: "full", Digits: 1}}}
	back := &report.Table{Title: "Rollback to the last branch", Columns: []report.Column{
		{Name: "RAM MiB"}, {Name: "load MiB"}, {Name: "rollbacks"}, {Name: "vCPUs entered p50 ms", Digits: 1},
		{Name: "agent confirmed p50 ms", Digits: 1}}}
	for _, w := range rows {
		ratio := []any{w.memoryMiB, w.dirtyMiB}
		live := report.Quantile(report.Millis(w.modes[vmmproto.BranchLive].pause...), 0.5)
		for _, mode := range modes {
			w.addTo(times, mode)
			ratio = append(ratio, report.Quantile(report.Millis(w.modes[mode].pause...), 0.5)/live)
		}
		ratios.Add(ratio...)
		var entered, confirmed []time.Duration
		for _, r := range w.rolled {
			entered, confirmed = append(entered, r.entered), append(confirmed, r.confirmed)
		}
		back.Add(w.memoryMiB, w.dirtyMiB, len(w.rolled), quantile(entered, 0.5), quantile(confirmed, 0.5))
	}
	if skipped > 0 {
		times.Notef("%d rows are left out: the time of -budget was up", skipped)
	}
	return []*report.Table{times, ratios, back}
}

func (w *row) addTo(t *report.Table, mode vmmproto.BranchMode) {
	f := w.modes[mode]
	cells := []any{w.memoryMiB, w.dirtyMiB, mode.String(), len(f.pause), report.Quantile(f.dirtyMiB, 0.5),
		quantile(f.pause, 0.5), quantile(f.pause, 0.99), quantile(f.arm, 0.5), quantile(f.ready, 0.5)}
	if mode == vmmproto.BranchLive {
		cells = append(cells, quantile(f.copied, 0.5), report.Quantile(f.faults, 0.5), quantile(f.stop, 0.5),
			report.Cell(100*report.Quantile(f.loss, 0.5)))
	} else {
		cells = append(cells, nil, nil, nil, nil)
	}
	t.Add(cells...)
}
