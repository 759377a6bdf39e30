package main

import (
	"context"
	"slices"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// depth is a snapshot that lies on as many others, and the spawns from it.
type depth struct {
	n                      int
	snap                   *snap
	total, entered, mapped []time.Duration // of each spawn: with its process; restore → vCPUs entered; mapping memory
	confirmed              []time.Duration
}

// depthTable makes a chain, each snapshot branched from a child of the one before, and spawns from some of its links.
func (l *vmLab) depthTable(ctx context.Context, base *snap, o *options) (*report.Table, error) {
	list, err := l.chain(ctx, base, o.depths)
	if err != nil {
		return nil, err
	}
	for range o.spawns { // in turn, so that what disturbs the host disturbs all depths
		for _, d := range list {
			if err := d.spawn(ctx, l); err != nil {
				return nil, err
			}
		}
	}
	t := &report.Table{Title: "Spawn from a chain of snapshots", Columns: []report.Column{
		{Name: "depth"}, {Name: "layers"}, {Name: "extents"}, {Name: "spawns"}, {Name: "map memory p50 ms", Digits: 2},
		{Name: "restore p50 ms", Digits: 1}, {Name: "restore p99 ms", Digits: 1}, {Name: "with process p50 ms", Digits: 1},
		{Name: "agent confirmed p50 ms", Digits: 1}, {Name: "× shallowest", Digits: 2}}}
	first := report.Quantile(report.Millis(list[0].total...), 0.5)
	for _, d := range list {
		all := report.Quantile(report.Millis(d.total...), 0.5)
		t.Add(d.n, len(d.snap.layers), len(d.snap.extents), len(d.total), quantile(d.mapped, 0.5), quantile(d.entered, 0.5),
			quantile(d.entered, 0.99), all, quantile(d.confirmed, 0.5), all/first)
	}
	t.Notef("restore: request → vCPUs entered; × compares it with its process; maps are bounded as the daemon bounds them; "+
		"the chain keeps all its layers, the daemon flattens the 32nd; %d MiB of guest RAM", l.shape.MemoryBytes>>20)
	return t, nil
}

// chain returns the snapshots at the depths, ascending.
func (l *vmLab) chain(ctx context.Context, base *snap, depths []int) ([]*depth, error) {
	var list []*depth
	s := base
	for n := 0; n <= slices.Max(depths); n++ {
		if slices.Contains(depths, n) {
			list = append(list, &depth{n: n, snap: s})
		}
		if n == slices.Max(depths) {
			break
		}
		var err error
		if s, err = l.link(ctx, s); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// link returns a snapshot of a child of s.
func (l *vmLab) link(ctx context.Context, s *snap) (*snap, error) {
	v, _, err := l.fork(ctx, s)
	if err != nil {
		return nil, err
	}
	defer v.Kill()
	b, err := v.branch(ctx, s, vmmproto.BranchDiff)
	if err != nil {
		return nil, err
	}
	return b.snap, nil
}

func (d *depth) spawn(ctx context.Context, l *vmLab) error {
	start := time.Now()
	v, r, err := l.fork(ctx, d.snap)
	if err != nil {
		return err
	}
	all := time.Since(start)
	d.confirmed = append(d.confirmed, all)
	d.total = append(d.total, all-r.confirmed+r.entered)
	d.entered = append(d.entered, r.entered)
	d.mapped = append(d.mapped, time.Duration(r.parts.MapNanos))
	return v.Kill()
}
