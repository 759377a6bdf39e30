package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/vm"
)

// depth is a snapshot that has n ancestors, and the forks from it.
type depth struct {
	n               int
	tag             string
	layers, extents int
	cold, warm      forks // cold: no VMM was waiting; warm: a VMM was waiting
}

// forks are the times of the forks from one snapshot.
type forks struct {
	mapped, work       []time.Duration // parts of the VMM's time: mapping memory, and the whole restore
	entered, confirmed []time.Duration // time from the request to the entry of the vCPUs, and to the confirmation
}

// depthTable makes a chain of snapshots, and then forks children from some of the snapshots. Each
// snapshot is a branch of a child of the previous snapshot.
func (b *bench) depthTable(ctx context.Context, memoryMiB int) (*report.Table, error) {
	b.Progress("chain of %d snapshots", slices.Max(b.depths.List))
	var list []*depth
	err := b.host.WithManager(lab.Options{}, func(m *lab.Manager) (err error) {
		list, err = b.chain(ctx, m, memoryMiB)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, pool := range []int{0, 1} {
		b.Progress("%d forks from each depth, %d VMMs waiting", b.forks, pool)
		err := b.host.WithManager(lab.Options{Pool: pool}, func(m *lab.Manager) error {
			return b.forkAll(ctx, m, list, pool)
		})
		if err != nil {
			return nil, err
		}
	}
	return b.depthRows(list, memoryMiB), nil
}

// chain makes the snapshots. When all snapshots are on disk, it returns the snapshots at the wanted
// depths, in ascending order.
func (b *bench) chain(ctx context.Context, m *lab.Manager, memoryMiB int) ([]*depth, error) {
	var list []*depth
	tag := parent(memoryMiB)
	for n := 0; ; n++ {
		if slices.Contains(b.depths.List, n) {
			d, err := b.look(n, tag)
			if err != nil {
				return nil, err
			}
			list = append(list, d)
		}
		if n == slices.Max(b.depths.List) {
			return list, b.host.Store.WaitFlushed(ctx, tag)
		}
		next := fmt.Sprintf("depth-%d", n+1)
		forked, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: 1})
		if err != nil {
			return nil, err
		}
		id := forked.Sandboxes[0].ID
		if _, err := m.Branch(ctx, id, sandbox.BranchRequest{Tag: next, Mode: vm.BranchDiff}); err != nil {
			return nil, err
		}
		if err := m.Kill(id); err != nil {
			return nil, err
		}
		tag = next
	}
}

// look opens a snapshot before the forks, so that opening it is not measured.
func (b *bench) look(n int, tag string) (*depth, error) {
	lease, err := b.host.Store.Acquire(tag)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	return &depth{n: n, tag: tag, layers: len(lease.Layers()), extents: len(lease.Extents())}, nil
}

// forkAll forks from all depths alternately, so that a disturbance of the host affects all depths.
// It does not measure the first round, which fills the caches and lets the pool fill itself.
func (b *bench) forkAll(ctx context.Context, m *lab.Manager, list []*depth, pool int) error {
	for round := range b.forks + 1 {
		for _, d := range list {
			if round > 0 {
				if err := m.WaitPool(ctx, pool); err != nil {
					return err
				}
			}
			forked, err := m.Fork(ctx, sandbox.ForkRequest{Tag: d.tag, N: 1})
			if err != nil {
				return err
			}
			child := forked.Sandboxes[0]
			if err := m.Kill(child.ID); err != nil {
				return err
			}
			if round > 0 && pool > 0 {
				d.warm.add(child.Timing)
			} else if round > 0 {
				d.cold.add(child.Timing)
			}
		}
	}
	return nil
}

func (s *forks) add(t sandbox.Timing) {
	r := t.Restore
	s.mapped = append(s.mapped, r.Map)
	s.work = append(s.work, r.Map+r.State+r.Run)
	s.entered, s.confirmed = append(s.entered, t.VMM), append(s.confirmed, t.Ready)
}

func (b *bench) depthRows(list []*depth, memoryMiB int) *report.Table {
	t := &report.Table{Title: "Fork from a chain of snapshots", Columns: []report.Column{
		{Name: "depth"}, {Name: "layers"}, {Name: "extents"}, {Name: "pool"}, {Name: "forks"},
		{Name: "map memory p50 ms", Digits: 2}, {Name: "restore p50 ms", Digits: 1},
		{Name: "vCPUs entered p50 ms", Digits: 1}, {Name: "entered p99 ms", Digits: 1}, {Name: "entered ×", Digits: 2},
		{Name: "confirmed p50 ms", Digits: 0}, {Name: "confirmed ×", Digits: 2}}}
	add := func(pool string, of func(*depth) *forks) {
		p50 := func(ds []time.Duration) float64 { return report.Quantile(report.Millis(ds...), 0.5) }
		first := of(list[0])
		for _, d := range list {
			s := of(d)
			t.Add(d.n, d.layers, d.extents, pool, len(s.entered), p50(s.mapped), p50(s.work), p50(s.entered),
				quantile(s.entered, 0.99), p50(s.entered)/p50(first.entered),
				p50(s.confirmed), p50(s.confirmed)/p50(first.confirmed))
		}
	}
	add("cold", func(d *depth) *forks { return &d.cold })
	add("warm", func(d *depth) *forks { return &d.warm })
	t.Notef("restore: the VMM's own work, mapping memory included; entered, confirmed: from the request; ×: against the "+
		"first depth; %d MiB of guest RAM; a chain of 32 layers is made one layer by the next branch", memoryMiB)
	return t
}
