package sandbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/hook"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// bringBack starts a VM from the state of a suspended sandbox. After an error, the sandbox is still
// suspended, or it is being deleted. The caller must hold s.ops.
//
// When the sandbox runs, bringBack sets the sandbox's expiry to the result of the given function.
// If the function is nil, the sandbox keeps its expiry. But if that expiry has passed and would
// suspend the sandbox again immediately, bringBack removes it.
func (m *Manager) bringBack(ctx context.Context, s *Sandbox, expiry func() Expiry) error {
	err := m.tryBringBack(ctx, s, expiry)
	switch state := s.Info().State; {
	case err != nil && state == Suspended:
		return fmt.Errorf("resume sandbox %q: it stays suspended: %w", s.id, err)
	case err != nil && state == Stopping: // the deletion has ended the VM
		return s.stateError("resume")
	}
	return err
}

func (m *Manager) tryBringBack(ctx context.Context, s *Sandbox, expiry func() Expiry) error {
	start := time.Now()
	var undo cleanup.Stack
	defer undo.Run()
	if err := s.transition("resume", Restoring, nil); err != nil {
		return err
	}
	undo.Add(func() { _ = s.transition("resume", Suspended, nil) }) // fails if s is being deleted
	rec := s.record
	if expiry == nil && rec.ExpirySuspends && s.due() {
		expiry = func() Expiry { return Expiry{Suspends: true} }
	}
	if err := m.cfg.VMMs.CheckLimits("limits.", rec.Limits); err != nil {
		return err
	}
	lease, err := m.cfg.Store.AcquireVersion(rec.SnapshotTag, rec.SnapshotID)
	if err != nil {
		return err
	}
	undo.Add(lease.Release)
	vcpus := lease.Manifest().Machine.VCPUs
	if err := m.admit(1, vcpus); err != nil {
		return err
	}
	started := sync.OnceFunc(func() { m.admitted.Started(1) })
	defer started()
	leave := m.admitted.Leaver(vcpus)
	undo.Add(leave)
	dir := m.vmDir(s.id)
	vmm, err := m.cfg.VMMs.Spawn(ctx, vmpool.ShellConfig{ID: s.id, Dir: dir, Shape: lease.Manifest().Machine.Shape()})
	if err != nil {
		return fmt.Errorf("start a VMM: %w", err)
	}
	v := m.newLiveVM(s.record.Owner, &vmpool.Shell{ID: s.id, Dir: dir, VMM: vmm}, lease)
	v.leave = leave
	undo.Add(func() { m.killer.Kill(s.id, v.vmm); v.link.Close(); ledger.ClearTops(s.data) })
	if err := s.swapLeases(func() { s.resuming = v }); err != nil {
		return err
	}
	undo.Add(func() { _ = s.swapLeases(func() { s.resuming = nil }) }) // fails if s is being deleted
	rec.Top, rec.Tops, rec.PID = rec.NextTop(), rec.Tops+1, vmm.PID()
	if err := v.limit(&rec); err != nil {
		return err
	}
	release, err := owner.TakePlace(ctx, m.restores, rec.Owner)
	if err != nil {
		return err
	}
	release = sync.OnceFunc(release)
	disks, err := s.mounts.OpenFirst(ctx, rec.Volumes, lease, release, m.restores)
	if err != nil {
		return err
	}
	timing, err := m.restore(ctx, start, v, s.data, &rec, disks)
	disks.Close() // not deferred, because the disks hold a place, and the hook below may take minutes
	release()
	if err != nil {
		return err
	}
	if err := m.confirm(ctx, v, &rec); err != nil {
		return err
	}
	started() // before the hook below, which may take minutes
	if err := m.hookIn(ctx, v, &rec, hook.AfterResume); err != nil {
		return err
	}
	timing.Ready = time.Since(start)
	if expiry != nil {
		expiry().Write(&rec)
	}
	if err := ledger.Write(dir, &rec); err != nil {
		return err
	}
	err = s.transition("resume", Running, func() { s.live, s.resuming, s.record, s.timing = v, nil, rec, timing })
	if err != nil {
		return err
	}
	undo.Release()
	s.usage.Touch()
	m.watchers.Go(func() { m.watch(s, v) })
	if expiry == nil {
		return nil
	}
	m.setTimer(s)
	// The following write may fail, for example on a full disk. Then the suspended state keeps the
	// old expiry. The old expiry matters only if the VM is lost and the sandbox returns to its
	// suspended state.
	kept := Expiry{At: rec.Expires, Suspends: rec.ExpirySuspends}
	if err := ledger.UpdateSuspended(s.data, kept.Write); err != nil {
		m.cfg.Log.Error("write the expiry of a sandbox into its suspended state", "sandbox", s.id, "error", err)
	}
	return nil
}

// fallBack makes an exited sandbox suspended, with its latest suspended state. The caller must hold
// s.ops.
func (m *Manager) fallBack(s *Sandbox) error {
	r, err := ledger.ReadSuspended(s.data)
	if err != nil {
		return fmt.Errorf("resume sandbox %q: %w", s.id, err)
	}
	var v *liveVM
	err = s.transition("resume", Suspended, func() { v, s.live, s.record, s.silent = s.live, nil, r, false })
	if err != nil {
		return err
	}
	s.since.Forget()
	m.killer.Kill(s.id, v.vmm)
	s.mounts.Keep(r.Volumes) // the sandbox may have attached other volumes since its suspension
	ledger.ClearTops(s.data)
	v.release()
	return nil
}

// wake resumes the sandbox if it was suspended because it was idle. It counts the caller's
// operation as a request.
func (h *Held) wake(ctx context.Context) error {
	if h.s.Info().State == Suspended && h.s.record.AutoResume {
		if err := h.m.bringBack(ctx, h.s, nil); err != nil {
			return err
		}
	}
	h.free.Add(h.s.usage.Begin())
	return nil
}

// awake returns a sandbox. If the sandbox was suspended because it was idle, awake first resumes
// it.
func (m *Manager) awake(ctx context.Context, id string) (*Sandbox, error) {
	s, err := m.Get(id)
	if err != nil {
		return nil, err
	}
	info := s.Info()
	if !info.Silent && (info.State == Running || info.State == Exited || info.IdleTimeout == 0) {
		return s, nil
	}
	// Call wake with the lock held, because the sandbox may be about to be suspended.
	return s, m.With(ctx, id, func(h *Held) error { return h.wake(ctx) })
}
