package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/state"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Copy makes a snapshot of a suspended sandbox, which stays suspended. It copies the suspended
// state instead of using it as a parent, because the state is deleted with the sandbox. Children
// get the sandbox's present policy and limits. Copy takes a place for branches, although it writes
// far more than a branch. If tag is empty, Copy chooses one. If the sandbox is not suspended, the
// error is a *StateError.
func (h *Held) Copy(ctx context.Context, tag string) (store.Info, error) {
	m, i := h.m, h.Info()
	tag, err := owner.BranchTag(ctx, tag, i.ID, time.Now(), false)
	if err != nil {
		return store.Info{}, err
	}
	if i.State != Suspended {
		return store.Info{}, &StateError{ID: i.ID, Op: "snapshot suspended", State: i.State}
	}
	giveBack, err := m.cfg.Store.ReserveRAM(ctx, i.Owner, i.MemoryBytes, nil)
	if err != nil {
		return store.Info{}, err
	}
	defer giveBack()
	leave, err := admit.EnterBranches(ctx, m.branches, false)
	if err != nil {
		return store.Info{}, err
	}
	defer leave()
	return chain.Compact(ctx, m.cfg.Store, i.StateTag, tag, &chain.Source{
		Branch:  snapshot.Branch{SandboxID: i.ID, Mode: vm.BranchFull.String()},
		Network: i.Network.ForSnapshot(), Limits: i.Limits, Strict: i.Strict, Hooks: i.Hooks})
}

// Fork forks a suspended sandbox, which stays suspended. Unless req says otherwise, children get
// the sandbox's present policy, limits and strictness, as they would in a fork of a branch. If the
// sandbox is not suspended, the error is a *StateError.
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
	req.Limits, req.Hooks = cmp.Or(req.Limits, &i.Limits), cmp.Or(req.Hooks, &i.Hooks)
	if req.Strict == unique.AsBefore {
		req.Strict = unique.Of(i.Strict)
	}
	return h.m.Fork(ctx, req)
}

// errBusy says that an idle sandbox has received a request before it was suspended.
var errBusy = errors.New("a request came in")

// lockToSuspend locks a sandbox for a suspension, and takes a place for suspensions. The place
// counts for the sandbox's owner. lockToSuspend never holds the lock while it waits for the place,
// or the place while it waits for the lock. So requests to the sandbox do not wait for other
// suspensions, and other suspensions do not wait for a long request.
//
// Until unlock is called, branches that wait for the guest to freeze its file system are cancelled.
// An automatic suspension does not cancel these branches, but waits for them, as it waits for all
// requests.
func (m *Manager) lockToSuspend(ctx context.Context, s *Sandbox, auto bool) (unlock func(), err error) {
	var held cleanup.Stack
	defer func() { held.Run() }()
	if !auto {
		held.Add(s.rests.Clear(&CutOffError{ID: s.id, Op: "branch", By: state.BySuspend}))
	}
	for share := owner.PlaceShare(context.Background(), m.suspends, s.Info().Owner); ; {
		leave, err := m.suspends.Wait(ctx, share)
		if err != nil {
			return nil, err
		}
		if !s.tryLock() {
			leave()
			if _, err = s.lock(ctx); err != nil {
				return nil, err
			}
			if leave, err = m.suspends.Enter(share); err != nil {
				s.unlock()
				continue
			}
		}
		held.Add(leave)
		held.Add(s.unlock)
		kept := held
		held.Release()
		return kept.Run, nil
	}
}

// suspend suspends a sandbox. The caller must hold s.ops and a place in m.suspends. If auto is set
// and a request arrives, the suspension is abandoned with errBusy.
func (m *Manager) suspend(ctx context.Context, s *Sandbox, auto bool, how Suspension) error {
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
		Encrypt: how.Encrypt}}
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
	if how.Timeless {
		Expiry{Suspends: suspended.ExpirySuspends}.Write(&suspended)
	}
	if err := m.commitSuspension(s, suspended, unpin); err != nil {
		return err
	}
	undo.Release()
	return nil
}

// standStill pauses the VM of a sandbox that is being suspended, and adds the resumption of the VM
// to the stack undo. A VM that is already paused stays paused. If the disk has no room for the
// memory that the VM has written, standStill returns an error before it pauses the VM.
func (m *Manager) standStill(ctx context.Context, s *Sandbox, auto bool, undo *cleanup.Stack) error {
	paused := s.Info().State == Paused
	if !paused {
		if err := s.transition("suspend", Paused, nil); err != nil {
			return err
		}
		undo.Add(func() { _ = s.transition("suspend", Running, nil) }) // fails if the VM has ended
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
			return // the VM has ended
		}
		if err := s.startVM(ctx, v); err != nil {
			m.cfg.Log.Error("resume a sandbox that could not be suspended", "sandbox", s.id, "error", err)
		}
	})
	return nil
}

// commitSuspension records that the sandbox is suspended, and frees its VM. The snapshot with the
// suspended state must be on disk, and is kept until unpin is called. After an error the sandbox
// still has its VM, or is being deleted.
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
	if err != nil { // the sandbox is being deleted
		return err
	}
	s.usage.Stop()
	v.cut(&CutOffError{ID: s.id, By: state.BySuspend})
	m.killer.Kill(s.id, v.vmm)
	s.mounts.Suspend(context.Background(), m.cfg.Log, suspended.Volumes)
	ledger.ClearTops(s.data)
	v.release()
	if earlier != nil {
		earlier()
	}
	m.cfg.Store.Cool(suspended.SnapshotTag)
	return nil
}
