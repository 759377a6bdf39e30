package sandbox

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Copy makes a snapshot of a suspended sandbox, which stays so: of what Resume would bring it back
// from, copied, for that goes with the sandbox. Children have the policy and the limits that the
// sandbox has now. It takes a place of a branch, of which it writes far more than one. An empty tag is
// replaced. The error of a sandbox in another state is a *StateError.
func (h *Held) Copy(ctx context.Context, tag string) (store.Info, error) {
	m, i := h.m, h.Info()
	tag, err := branchTag(ctx, tag, i.ID, time.Now())
	if err != nil {
		return store.Info{}, err
	}
	leave, err := m.enterBranches(ctx)
	if err != nil {
		return store.Info{}, err
	}
	defer leave()
	if i.State != Suspended {
		return store.Info{}, &StateError{ID: i.ID, Op: "snapshot suspended", State: i.State}
	}
	return chain.Compact(ctx, m.cfg.Store, i.StateTag, tag, &chain.Source{
		Branch:  snapshot.Branch{SandboxID: i.ID, Mode: vm.BranchFull.String()},
		Network: i.Network.ForSnapshot(), Limits: i.Limits, Strict: i.Strict,
	})
}

// Fork forks what Resume would bring a suspended sandbox back from; the sandbox stays suspended. Where
// req says nothing else, children have the policy, the limits and the strictness that the sandbox has
// now, as children of a branch of it would. The error of a sandbox in another state is a *StateError.
func (h *Held) Fork(ctx context.Context, req ForkRequest) (ForkResult, error) {
	i := h.Info()
	if i.State != Suspended {
		return ForkResult{}, &StateError{ID: i.ID, Op: "fork suspended", State: i.State}
	}
	req.Tag = i.StateTag
	now, err := netclient.FromSnapshot(i.Network.ForSnapshot())
	if err != nil {
		return ForkResult{}, err
	}
	if req.present = &now; req.Network == nil {
		req.Network = &now
	}
	if req.Limits == nil {
		req.Limits = &i.Limits
	}
	if req.Strict == unique.AsBefore {
		req.Strict = unique.Of(i.Strict)
	}
	return h.m.Fork(ctx, req)
}

// errBusy says that an idle sandbox got a request before it was suspended.
var errBusy = errors.New("a request came in")

// lockToSuspend locks a sandbox that is to be suspended without a request, and takes a place for that.
// It waits for one while it has the other for neither: requests to the sandbox do not wait until others
// have been suspended, nor these until a long request is done.
func (m *Manager) lockToSuspend(s *Sandbox) (unlock func(), err error) {
	ctx, owner := context.Background(), s.Info().Owner
	for {
		leave, err := takePlace(ctx, m.suspends, owner)
		if err != nil {
			return nil, err
		}
		if s.tryLock() {
			return func() { s.unlock(); leave() }, nil
		}
		leave()
		unlock, err := s.lock(ctx)
		if err != nil {
			return nil, err
		}
		if leave, err := m.suspends.Enter(placeShare(ctx, m.suspends, owner)); err == nil {
			return func() { unlock(); leave() }, nil
		}
		unlock()
	}
}

// suspend is Suspend of a sandbox whose ops the caller holds, with a place in m.suspends. The sandbox
// has the expiry then, if that is not nil. An automatic suspension gives way to requests: errBusy.
func (m *Manager) suspend(ctx context.Context, s *Sandbox, auto bool, expiry *Expiry) error {
	var undo cleanup.Stack
	defer undo.Run()
	if err := m.standStill(ctx, s, auto, &undo); err != nil {
		return err
	}
	rec, v, err := s.withVM("suspend")
	if err != nil {
		return err
	}
	b := &branch{m: m, s: s, v: v, op: "suspend", start: time.Now(), req: BranchRequest{
		Tag: fmt.Sprintf("suspended-%s-%d", rec.ID, rec.Tops+1), Mode: vm.BranchDiff, Transient: true,
	}}
	if err := b.freeze(ctx); err != nil {
		b.undo.Run()
		return err
	}
	result, err := b.finish(ctx)
	if err != nil {
		return err
	}
	unpin, err := m.cfg.Store.Pin(result.Info.Tag)
	if err != nil {
		return err
	}
	undo.Add(unpin)
	if err := m.cfg.Store.WaitFlushed(context.WithoutCancel(ctx), result.Info.Tag); err != nil {
		return err
	}
	s.mu.Lock()
	suspended := s.record
	s.mu.Unlock()
	suspended.SuspendAs(result.Info.Tag, b.staging.ID(), auto)
	if expiry != nil {
		expiry.write(&suspended)
	}
	if err := m.commitSuspension(s, suspended, unpin); err != nil {
		return err
	}
	undo.Release()
	return nil
}

// standStill stops the VM of a sandbox that is to be suspended, and adds to undo how to let it run
// again. One that is paused stays so. Where the disk has no room for what it has written it is not
// stopped at all.
func (m *Manager) standStill(ctx context.Context, s *Sandbox, auto bool, undo *cleanup.Stack) error {
	paused := s.Info().State == Paused
	if !paused {
		if err := s.transition("suspend", Paused, nil); err != nil {
			return err
		}
		undo.Add(func() { _ = s.transition("suspend", Running, nil) }) // refused where it has ended
		if auto && !s.usage.Idle() {
			return errBusy
		}
	}
	v := s.live
	stats, err := v.vmm.Stats(ctx)
	if s.answered(err) != nil {
		return err
	}
	room, err := m.cfg.Store.Room()
	if err != nil {
		return err
	}
	if room < stats.GuestDirtyBytes {
		return fmt.Errorf("suspend sandbox %q: it has written %d MiB of memory, there is room for %d MiB: %w",
			s.id, stats.GuestDirtyBytes>>20, room>>20, syscall.ENOSPC)
	}
	if paused {
		return nil
	}
	if err := s.stopVM(ctx, v); err != nil {
		return err
	}
	undo.Add(func() {
		if s.Info().State != Paused {
			return // its VM is gone
		}
		if err := s.startVM(ctx, v); err != nil {
			m.cfg.Log.Error("resume a sandbox that could not be suspended", "sandbox", s.id, "error", err)
		}
	})
	return nil
}

// commitSuspension makes a suspended state count, whose snapshot is on disk and kept until unpin is
// called, and frees the VM. After an error the sandbox has its VM, or is being deleted.
func (m *Manager) commitSuspension(s *Sandbox, suspended ledger.Record, unpin func()) error {
	if err := ledger.WriteSuspended(s.data, &suspended); err != nil {
		return err
	}
	var v *liveVM
	var earlier func()
	err := s.transition("suspend", Suspended, func() {
		v, s.live = s.live, nil
		earlier, s.unpin = s.unpin, unpin
		s.record = suspended
	})
	if err != nil { // it is being deleted
		return err
	}
	s.usage.Stop()
	v.cut(&CutOffError{ID: s.id, By: bySuspend})
	m.kill(s.id, v)
	ledger.ClearTops(s.data)
	v.release()
	if earlier != nil {
		earlier()
	}
	m.cfg.Store.Cool(suspended.SnapshotTag)
	return nil
}
