package main

import (
	"context"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/proto/vm"
)

// row has the measurements for guests of one size that keep one amount of memory dirty.
type row struct {
	memoryMiB, dirtyMiB int
	modes               map[vm.BranchMode][]*branched
	rolled              []rolled
}

var modes = [...]vm.BranchMode{vm.BranchLive, vm.BranchDiff, vm.BranchFull}

// newRow branches a busy source in all modes alternately, and rolls it back to the last branch.
// Each branch is deleted after the next branch was made.
func (b *bench) newRow(ctx context.Context, memoryMiB, dirtyMiB int) (*row, error) {
	b.Progress("%d MiB, %d MiB dirty", memoryMiB, dirtyMiB)
	w := &row{memoryMiB: memoryMiB, dirtyMiB: dirtyMiB, modes: make(map[vm.BranchMode][]*branched)}
	return w, b.withSource(ctx, memoryMiB, dirtyMiB, func(s *source) error {
		last := ""
		for range b.samples {
			for _, mode := range modes {
				x, err := s.branch(ctx, mode)
				if err != nil {
					return err
				}
				w.modes[mode] = append(w.modes[mode], x)
				if last != "" {
					if err := b.drop(last); err != nil {
						return err
					}
				}
				last = x.tag
			}
		}
		for range b.samples {
			r, err := s.rollBack(ctx, last)
			if err != nil {
				return err
			}
			w.rolled = append(w.rolled, r)
		}
		if err := s.m.Kill(s.id); err != nil { // kill the sandbox first, because it runs from the branch
			return err
		}
		return b.drop(last)
	})
}

// each(list, figure) returns one figure for each branch of a mode.
func each[T any](list []*branched, figure func(*branched) T) []T {
	out := make([]T, len(list))
	for i, x := range list {
		out[i] = figure(x)
	}
	return out
}

func (w *row) pause(mode vm.BranchMode) []time.Duration {
	return each(w.modes[mode], func(x *branched) time.Duration { return x.pause })
}

// tables shows the rows. It also shows how many rows were skipped because no time was left.
func tables(rows []*row, skipped int) []*report.Table {
	times := &report.Table{Title: "Branch of a guest that writes its dirty set all the time", Columns: []report.Column{
		{Name: "RAM MiB"}, {Name: "load MiB"}, {Name: "mode"}, {Name: "branches"}, {Name: "saved MiB", Digits: 0},
		{Name: "pause p50 ms", Digits: 1}, {Name: "pause p99 ms", Digits: 1}, {Name: "arm p50 ms", Digits: 1},
		{Name: "ready p50 ms", Digits: 0}, {Name: "persisted p50 ms", Digits: 0}, {Name: "faults p50", Digits: 0},
		{Name: "stopped again p50 ms", Digits: 1}, {Name: "work lost p50 ms", Digits: 0},
		{Name: "source slower by %", Digits: 0}, {Name: "asking p50 ms", Digits: 1}}}
	times.Notef("arm: write-protecting (live) or copying (diff, full), part of the pause; ready: request → children can " +
		"start; persisted: request → all files of the snapshot flushed to disk, with the load stopped from ready on")
	times.Notef("work lost: the source wrote less than usual from the request to ready; this is the time that it would have " +
		"needed for the difference, at its speed in the second before; slower by: this time in per cent of request → ready; " +
		"asking: the longer of two questions, before and after the branch, which the source answers while it works; blank " +
		"if they took longer than the branch")
	if skipped > 0 {
		times.Notef("%d rows are left out: the time of -budget was up", skipped)
	}
	for _, w := range rows {
		for _, mode := range modes {
			w.addTo(times, mode)
		}
	}
	return []*report.Table{times, ratios(rows), rollbacks(rows)}
}

func (w *row) addTo(t *report.Table, mode vm.BranchMode) {
	list := w.modes[mode]
	millis := func(figure func(*branched) time.Duration) any { return quantile(each(list, figure), 0.5) }
	cells := []any{w.memoryMiB, w.dirtyMiB, mode.String(), len(list),
		median(each(list, func(x *branched) float64 { return x.saved })),
		quantile(w.pause(mode), 0.5), quantile(w.pause(mode), 0.99),
		millis(func(x *branched) time.Duration { return x.arm }),
		millis(func(x *branched) time.Duration { return x.ready }),
		millis(func(x *branched) time.Duration { return x.persisted })}
	if mode == vm.BranchLive {
		cells = append(cells, median(each(list, func(x *branched) float64 { return x.faults })),
			millis(func(x *branched) time.Duration { return x.stop }))
	} else {
		cells = append(cells, nil, nil)
	}
	t.Add(append(cells, report.Cell(median(each(list, func(x *branched) float64 { return 1000 * x.lost }))),
		report.Cell(median(each(list, func(x *branched) float64 { return 100 * x.lost / x.ready.Seconds() }))),
		millis(func(x *branched) time.Duration { return x.asking }))...)
}

func ratios(rows []*row) *report.Table {
	t := &report.Table{Title: "Pause, live : diff : full (p50, live = 1)", Columns: []report.Column{
		{Name: "RAM MiB"}, {Name: "load MiB"}, {Name: "live", Digits: 1}, {Name: "diff", Digits: 1},
		{Name: "full", Digits: 1}}}
	for _, w := range rows {
		cells := []any{w.memoryMiB, w.dirtyMiB}
		live := report.Quantile(report.Millis(w.pause(vm.BranchLive)...), 0.5)
		for _, mode := range modes {
			cells = append(cells, report.Quantile(report.Millis(w.pause(mode)...), 0.5)/live)
		}
		t.Add(cells...)
	}
	return t
}

func rollbacks(rows []*row) *report.Table {
	t := &report.Table{Title: "Rollback to the last branch, when the load has written its dirty set again",
		Columns: []report.Column{{Name: "RAM MiB"}, {Name: "load MiB"}, {Name: "rollbacks"}, {Name: "dropped MiB", Digits: 0},
			{Name: "vCPUs entered p50 ms", Digits: 1}, {Name: "agent confirmed p50 ms", Digits: 1}}}
	for _, w := range rows {
		var entered, confirmed []time.Duration
		var dropped []float64
		for _, r := range w.rolled {
			entered, confirmed, dropped = append(entered, r.entered), append(confirmed, r.confirmed), append(dropped, r.dropped)
		}
		t.Add(w.memoryMiB, w.dirtyMiB, len(w.rolled), median(dropped), quantile(entered, 0.5), quantile(confirmed, 0.5))
	}
	return t
}
