package sandbox

import (
	"context"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/hook"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// These constants limit how much a branch slows other sandboxes.
const (
	// maximum number of extents that describe the dirty pages of a branch; with so many extents,
	// the VMM rarely has to include clean pages between dirty ones
	vmmExtents    = 8192
	branchTimeout = 10 * time.Minute
)

// Branch makes a snapshot of a sandbox. Afterwards the sandbox continues (or stays paused), even
// after an error, and can be branched again. Branches of one sandbox wait for each other. If the
// host or the owner already has too many branches, the field Queue of the request decides: if it is
// set, Branch waits, and if not, Branch returns an *admit.BusyError. If the field NoWait of the
// request is not set, the snapshot can be forked when Branch returns. The snapshot is flushed to
// disk in the background.
func (m *Manager) Branch(ctx context.Context, id string, req BranchRequest) (BranchResult, error) {
	start := time.Now()
	s, err := m.Get(id)
	if err == nil && req.Mode == vm.BranchDisk && !req.NoHooks { // comparisons set NoHooks, and need no volumes
		err = mounts.CheckDiskOnly(id, s.Info().Volumes)
	}
	if err != nil {
		return BranchResult{}, err
	}
	tag, err := owner.BranchTag(ctx, req.Tag, id, start, req.Step)
	if err != nil {
		return BranchResult{}, err
	}
	req.Tag = tag
	if req.NoWait && req.Mode != vm.BranchLive {
		return BranchResult{}, &invalid.Error{Field: "wait", Reason: "only a live branch can be left to itself"}
	}
	if err := ledger.CheckLabels(req.Labels); err != nil {
		return BranchResult{}, err
	}
	if !req.NoHooks {
		if err := m.hook(ctx, id, hook.BeforeBranch); err != nil {
			return BranchResult{}, err
		}
	}
	var r BranchResult
	err = m.With(ctx, id, func(h *Held) (err error) {
		r, err = h.branch(ctx, req, start)
		return err
	})
	return r, err
}

// branch does the work of Branch for a request that is already checked. The request arrived at the
// time start.
func (h *Held) branch(ctx context.Context, req BranchRequest, start time.Time) (BranchResult, error) {
	m, s := h.m, h.s
	if err := h.wake(ctx); err != nil {
		return BranchResult{}, err
	}
	if rec, v, err := s.withVM("branch"); err == nil && req.Mode != vm.BranchDisk {
		leave, err := m.reserveRAM(ctx, s, &rec, v, &req)
		if err != nil {
			return BranchResult{}, err
		}
		h.free.Add(leave)
	}
	done, err := admit.EnterBranches(ctx, m.branches, req.Queue)
	if err != nil {
		return BranchResult{}, err
	}
	if req.Mode == vm.BranchDisk {
		done() // a guest may never answer, so a branch that waits for its guest must not hold a place
	} else {
		h.free.Add(done)
	}
	b := &branch{m: m, s: s, v: s.live, op: "branch", req: req, start: start,
		figure: snapshot.Branch{Mode: req.Mode.String()}}
	err = b.freeze(ctx)
	if err == nil && req.Mode == vm.BranchDisk {
		if done, err = admit.EnterBranches(ctx, m.branches, true); err == nil {
			h.free.Add(done)
		}
	}
	if err != nil {
		b.undo.Run()
		err = s.explain("branch", b.v, err)
		m.cfg.Observer.BranchDone(BranchResult{Figure: b.figure}, err)
		return BranchResult{}, err
	}
	if !req.NoWait || b.done.Mode != vm.BranchLive {
		return b.finish(ctx)
	}
	parent := b.lease.Manifest()
	result := BranchResult{Figure: b.figure, Info: store.Info{
		Tag: req.Tag, Created: start, Writing: true, Parent: parent.Tag, Machine: parent.Machine, Guest: parent.Guest,
	}}
	rest := h.free // the sandbox's lock and the places are held until the layer is complete
	h.free = cleanup.Stack{}
	complete := m.unwatched.Add(req.Tag)
	m.background.Go(func() {
		defer complete() // runs after the places are free, so that a waiting client can branch at once
		defer rest.Run()
		if _, err := b.finish(context.WithoutCancel(ctx)); err != nil {
			m.cfg.Log.Error("branch", "sandbox", s.id, "snapshot", req.Tag, "error", err)
			m.cfg.Store.ListFailed(req.Tag, s.Info().Owner, err)
		}
	})
	return result, nil
}
