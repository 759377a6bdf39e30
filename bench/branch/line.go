package main

import (
	"context"
	"fmt"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/vm"
)

// lineMiB is how much memory the sandbox writes before each branch, in MiB.
const lineMiB = 1

// link has the measurements of the k-th branch of every line.
type link struct {
	saved, shared, dirty []float64 // MiB
	pause, arm, ready    []time.Duration
	layers               int
}

// lineTable takes live branches of one sandbox repeatedly. The sandbox writes 1 MiB before each
// branch.
func (b *bench) lineTable(ctx context.Context, memoryMiB int) (*report.Table, error) {
	links := make([]link, b.line)
	for sample := range b.samples {
		b.Progress("line %d of %d branches", sample+1, b.line)
		err := b.withSource(ctx, memoryMiB, lineMiB, func(s *source) error {
			for k := range links {
				if err := s.addTo(ctx, &links[k], fmt.Sprintf("line-%d-%d", sample, k)); err != nil {
					return err
				}
			}
			return s.m.Kill(s.id)
		})
		if err != nil {
			return nil, err
		}
	}
	t := &report.Table{Title: "One sandbox branched again and again, live, that writes 1 MiB in between",
		Columns: []report.Column{{Name: "branch"}, {Name: "memory layers"}, {Name: "saved p50 MiB", Digits: 1},
			{Name: "shared p50 MiB", Digits: 1}, {Name: "private after it p50 MiB", Digits: 1},
			{Name: "pause p50 ms", Digits: 1},
			{Name: "arm p50 ms", Digits: 1}, {Name: "ready p50 ms", Digits: 0}}}
	for k, l := range links {
		t.Add(k+1, l.layers, median(l.saved), median(l.shared), median(l.dirty), quantile(l.pause, 0.5), quantile(l.arm, 0.5),
			quantile(l.ready, 0.5))
	}
	t.Notef("%d lines; saved: the branch's memory layer; shared: of it, what the sandbox was rebased onto; private: the "+
		"sandbox's own pages then; the first branch has what was written since the fork, and so has each that ends a line",
		b.samples)
	return t, nil
}

// addTo tells the sandbox to write lineMiB MiB more, branches the sandbox, and records the
// measurements.
func (s *source) addTo(ctx context.Context, l *link, tag string) error {
	load, err := s.newMeter(ctx)
	if err != nil {
		return err
	}
	defer load.conn.Close()
	if err := load.nextMiB(); err != nil {
		return err
	}
	r, err := s.m.Branch(ctx, s.id, sandbox.BranchRequest{Tag: tag, Mode: vm.BranchLive})
	if err != nil {
		return err
	}
	if r.Figure.Mode != vm.BranchLive.String() {
		return fmt.Errorf("this host cannot branch live: %s", r.Figure.Fallback)
	}
	stats, err := s.m.Stats(ctx, s.id)
	if err != nil {
		return err
	}
	if err := s.b.host.Store.WaitFlushed(ctx, tag); err != nil {
		return err
	}
	info, err := s.b.host.Store.Detail(tag)
	if err != nil {
		return err
	}
	mib := func(n uint64) float64 { return float64(n) / (1 << 20) }
	l.layers = info.MemoryLayers
	l.saved, l.shared = append(l.saved, mib(info.MemoryPhysical)), append(l.shared, mib(r.Shared))
	l.dirty = append(l.dirty, mib(stats.VMM.GuestDirtyBytes))
	l.pause, l.arm = append(l.pause, time.Duration(r.Figure.Pause)), append(l.arm, time.Duration(s.arm.Load()))
	l.ready = append(l.ready, time.Duration(r.Figure.Ready))
	return nil
}

// nextMiB tells the load program to write the next MiB, and waits until the program has written it.
func (m *meter) nextMiB() error {
	before, err := m.read()
	if err == nil {
		err = m.send('m')
	}
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(guestLimit); ; time.Sleep(10 * time.Millisecond) {
		now, err := m.read()
		if err != nil {
			return err
		}
		if now.pages >= before.pages+1<<20/4096 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the load has not written a MiB in %v", guestLimit)
		}
	}
}
