package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// armTimed records how long each branch takes to write-protect or copy pages. This time is a part
// of the pause, and the manager does not report it.
type armTimed struct {
	vmpool.Processes
	last *atomic.Int64 // nanoseconds
}

type armTimedVMM struct {
	vmpool.VMM
	last *atomic.Int64
}

// Spawn implements vmpool.VMMs.
func (a armTimed) Spawn(ctx context.Context, c vmpool.ShellConfig) (vmpool.VMM, error) {
	v, err := a.Processes.Spawn(ctx, c)
	if err != nil {
		return nil, err
	}
	return armTimedVMM{v, a.last}, nil
}

// Branch implements vmpool.VMM.
func (v armTimedVMM) Branch(ctx context.Context, req vmmproto.Branch, f vmmclient.BranchFiles) (vmmproto.BranchResult,
	error) {
	r, err := v.VMM.Branch(ctx, req, f)
	v.last.Store(int64(r.Arm))
	return r, err
}

// source is a sandbox that runs the load program.
type source struct {
	b        *bench
	m        *lab.Manager
	id       string
	dirtyMiB int
	arm      *atomic.Int64 // time that the last branch took to write-protect or copy pages, in nanoseconds
	branches int
}

// withSource calls f with a busy sandbox and then kills it.
func (b *bench) withSource(ctx context.Context, memoryMiB, dirtyMiB int, f func(*source) error) error {
	arm := &atomic.Int64{}
	return b.host.WithManager(lab.Options{VMMs: armTimed{b.host.VMMs, arm}}, func(m *lab.Manager) error {
		forked, err := m.Fork(ctx, sandbox.ForkRequest{Tag: parent(memoryMiB), N: 1})
		if err != nil {
			return err
		}
		s := &source{b: b, m: m, id: forked.Sandboxes[0].ID, dirtyMiB: dirtyMiB, arm: arm}
		if err := s.startLoad(ctx); err != nil {
			return err
		}
		return f(s)
	})
}

// branched is one branch and its times.
type branched struct {
	tag              string
	pause, arm, stop time.Duration
	ready, persisted time.Duration // time since the request
	saved            float64       // MiB
	faults           float64
	lost             float64 // seconds of the source's work until ready; see lostWork
	asking           time.Duration
}

// baseline is how long the load runs undisturbed before each branch, to measure its speed.
const baseline = time.Second

// branch makes a snapshot of the source and waits until it is on disk. The load is stopped while
// the snapshot is written. If the load kept running, it would delay the writing on a host with one
// CPU.
func (s *source) branch(ctx context.Context, mode vm.BranchMode) (*branched, error) {
	load, err := s.newMeter(ctx)
	if err != nil {
		return nil, err
	}
	defer load.conn.Close()
	s.branches++
	x := &branched{tag: fmt.Sprintf("branch-%d", s.branches)}
	if err := s.underLoad(ctx, load, mode, x); err != nil {
		return nil, err
	}
	if err := load.send('s'); err != nil {
		return nil, err
	}
	if err := s.b.host.Store.WaitFlushed(ctx, x.tag); err != nil {
		return nil, err
	}
	info, err := s.b.host.Store.Detail(x.tag)
	if err != nil {
		return nil, err
	}
	x.persisted = x.ready + info.FlushedIn
	x.saved = float64(info.MemoryPhysical) / (1 << 20)
	return x, load.send('c')
}

// underLoad branches between two readings of the load's progress. Before that, the load writes
// every page once. After a branch or a restore, the host maps each page again at the first write to
// it, and this work would make the baseline too slow.
func (s *source) underLoad(ctx context.Context, load *meter, mode vm.BranchMode, x *branched) error {
	if err := s.fullRound(load); err != nil {
		return err
	}
	calm, err := load.read()
	if err != nil {
		return err
	}
	time.Sleep(baseline)
	begin, err := load.read()
	if err != nil {
		return err
	}
	r, err := s.m.Branch(ctx, s.id, sandbox.BranchRequest{Tag: x.tag, Mode: mode})
	if err != nil {
		return err
	}
	end, err := load.read()
	if err != nil {
		return err
	}
	f := r.Figure
	if f.Mode != mode.String() {
		return fmt.Errorf("this host cannot branch %v: %s", mode, f.Fallback)
	}
	x.pause, x.arm, x.stop, x.ready = time.Duration(f.Pause), time.Duration(s.arm.Load()), time.Duration(f.Stop),
		time.Duration(f.Ready)
	x.faults = float64(f.Faults)
	x.asking = max(begin.took, end.took)
	x.lost = lostWork(calm, begin, end, x.ready)
	return nil
}

// rolled is one rollback.
type rolled struct {
	dropped            float64       // MiB of private pages that the rollback dropped
	entered, confirmed time.Duration // time since the request
}

// rollBack rolls the source back to a branch, after the source has written all of its pages again.
func (s *source) rollBack(ctx context.Context, tag string) (rolled, error) {
	load, err := s.newMeter(ctx)
	if err != nil {
		return rolled{}, err
	}
	defer load.conn.Close()
	if err := s.fullRound(load); err != nil {
		return rolled{}, err
	}
	stats, err := s.m.Stats(ctx, s.id)
	if err != nil {
		return rolled{}, err
	}
	r, err := s.m.Rollback(ctx, s.id, tag, unique.AsBefore)
	return rolled{float64(stats.VMM.GuestDirtyBytes) / (1 << 20), r.VMM, r.Ready}, err
}

// fullRound waits until the load has written every page once more.
func (s *source) fullRound(load *meter) error {
	first, err := load.read()
	if err != nil {
		return err
	}
	round := uint64(s.dirtyMiB) << 20 / 4096
	for deadline := time.Now().Add(guestLimit); ; time.Sleep(100 * time.Millisecond) {
		now, err := load.read()
		if err != nil {
			return err
		}
		if now.pages >= first.pages+round {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the load has written %d of %d pages in %v", now.pages-first.pages, round, guestLimit)
		}
	}
}
