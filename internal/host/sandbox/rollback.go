package sandbox

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/state"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/writers"
)

// RollbackResult describes a rollback. Its times are measured from the request.
type RollbackResult struct {
	Info  Info
	Tag   string        // snapshot to which the sandbox was rolled back
	VMM   time.Duration // time until the vCPUs ran
	Ready time.Duration // time until the agent had confirmed
}

// Rollback resets a sandbox to the snapshot with the given tag: memory, disk, vCPUs and devices, in
// the same VMM process and under the same id. If the tag is empty, Rollback uses the snapshot that
// the sandbox runs from. A snapshot with another tag must be of the sandbox's family: the snapshot
// and the sandbox descend from the same snapshot of a booted VM, so they have the same CPU, memory
// size, devices and disk size. If the sandbox does not run from the snapshot, the client must be
// able to use the snapshot. A failure before the restore leaves the sandbox unchanged. The restore
// destroys the previous state, so if the restore fails, or the agent does not confirm afterwards,
// the sandbox is killed, and the error is a *RollbackError. Only the sandbox's latest suspended
// state remains, if it has one.
//
// The setting strict applies from this rollback on. A rollback that leaves the sandbox unchanged
// does not change the setting.
func (m *Manager) Rollback(ctx context.Context, id, to string, strict unique.Strict) (r RollbackResult, err error) {
	start := time.Now()
	err = m.With(ctx, id, func(h *Held) (err error) {
		r, err = h.rollback(ctx, to, strict, start)
		return err
	})
	return r, err
}

func (h *Held) rollback(ctx context.Context, to string, strict unique.Strict, start time.Time) (r RollbackResult,
	err error) {
	if err := h.wake(ctx); err != nil {
		return r, err
	}
	m, s := h.m, h.s
	defer func() { m.cfg.Observer.RollbackDone(err) }()
	rec, v, err := s.withVM(rollBackOp)
	if err != nil {
		return r, err
	}
	if to == "" {
		to = rec.SnapshotTag
	}
	var undo cleanup.Stack
	defer undo.Run()
	// Check before Acquire, because Acquire may read gigabytes, and the time for this would tell
	// the client that a hidden snapshot exists.
	if err := m.mayGoBack(ctx, &rec, to); err != nil {
		return r, err
	}
	lease, err := m.cfg.Store.Acquire(to)
	if err != nil {
		return r, cmp.Or(m.MayUse(ctx, to), err)
	}
	undo.Add(lease.Release)
	if err := m.inFamily(ctx, &rec, lease); err != nil {
		return r, err
	}
	was := rec
	if rec.Volumes, err = s.mounts.Combine(ctx, rollBackOp, rec.Volumes, lease.Manifest()); err != nil {
		return r, err
	}
	name := rec.NextTop()
	top, err := m.newTopOver(s.data, lease, name)
	if err != nil {
		return r, err
	}
	if top != nil {
		defer top.Close()
		undo.Add(func() { _ = writers.Remove(top.Name(), 0) }) // if this fails, the file is removed with the sandbox
	}
	disks, err := s.mounts.Open(ctx, rec.Volumes, lease, true)
	if err != nil {
		return r, err
	}
	defer disks.Close()
	// Wait for a place before the sandbox's state is lost, so that the sandbox is unchanged if the client
	// gives up during the wait. The wait for the disks of volumes, in Open above, needed no place.
	release, err := owner.TakePlace(ctx, m.restores, rec.Owner)
	if err != nil {
		return r, err
	}
	release = sync.OnceFunc(release)
	defer release()
	if rec.Strict = strict.Or(was.Strict); rec.Strict && !was.Strict {
		// An earlier suspended state must not bring back the earlier strictness. Write the new strictness
		// before the sandbox's state is lost, because the disk may be full.
		if err := ledger.UpdateSuspended(s.data, func(r *ledger.Record) { r.Strict = true }); err != nil {
			return r, err
		}
	}
	if err := s.update(func(r *ledger.Record) {
		r.Restoring, r.RestoringTo, r.Tops, r.Strict = true, lease.Manifest().Ref(), r.Tops+1, rec.Strict
		r.Volumes = rec.Volumes
	}); err != nil {
		return r, err
	}
	// The new network connection resets the guest's earlier connections. Join before the sandbox's
	// state is lost, so that the sandbox is unchanged if the host has no descriptor for a socket.
	link, err := m.join(v, &rec)
	if err != nil {
		return r, errors.Join(err, s.update(func(r *ledger.Record) {
			r.Restoring, r.RestoringTo, r.Strict, r.Volumes = false, nil, was.Strict, was.Volumes
		}))
	}
	err = s.transition(rollBackOp, Restoring, func() {
		v.cut(&CutOffError{ID: s.id, By: state.ByRollback})
		v.calls, v.cut = context.WithCancelCause(context.Background())
		v.link = link
	})
	if err != nil {
		link.Close()
		return r, err
	}
	err = m.rollBack(ctx, s, v, &rec, lease, top, disks, release, &r, start)
	if err == nil {
		err = m.commitRollback(s, v, rec, lease, name) // rec includes what the agent has found in the guest
	}
	if err != nil {
		return r, m.endRolledBack(s, v, to, err)
	}
	undo.Release()
	r.Info, r.Tag = s.Info(), to
	return r, nil
}

// endRolledBack kills a sandbox whose rollback failed with err after the previous state was already
// lost. If the sandbox has a suspended state, the sandbox becomes exited, as if its VM had ended,
// and can be restored from that state.
func (m *Manager) endRolledBack(s *Sandbox, v *liveVM, to string, err error) error {
	if s.Info().State == Stopping {
		v.link.Close() // the deletion may have closed only the previous link
		return &CutOffError{ID: s.id, Op: rollBackOp, By: state.ByDelete}
	}
	failed := &failure.RollbackError{ID: s.id, Tag: to, Err: err}
	if !errors.As(err, new(*failure.UnconfirmedError)) { // a failure.UnconfirmedError already quotes the console
		console, _ := vmpool.Console(m.cfg.VMMs, v.dir)
		failed.Console = excerpt.Console(console.Bytes, 5)
	}
	if s.hasSuspension() {
		failed.Kept = true
		m.killer.Kill(s.id, v.vmm) // watch then notices the exit
		return failed
	}
	_ = m.remove(s) // fails only if the sandbox is already deleted
	return failed
}

// rollBackOp is the name of the operation in errors.
const rollBackOp = "roll back"

// rollBack restores the snapshot, calls release to free the place for restores, and waits for the
// agent. It continues even if the client disconnects.
func (m *Manager) rollBack(ctx context.Context, s *Sandbox, v *liveVM, rec *ledger.Record, lease *store.Lease,
	top *os.File, disks *mounts.Disks, release func(), r *RollbackResult, start time.Time) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), branchTimeout)
	defer cancel()
	mounts.Leave(m.cfg.Log, m.exits, s.id, v.vmm, v.guest.Dial, disks.Again)
	err := disks.Commit(ctx)
	if err == nil {
		_, err = chain.Restore(ctx, v.vmm, lease, top, disks.Volumes, v.link != nil)
	}
	v.link.Ready()
	release()
	if err == nil {
		err = disks.End(ctx)
	}
	if err != nil {
		return err
	}
	r.VMM = time.Since(start)
	if err := m.confirm(ctx, v, rec); err != nil {
		return err
	}
	r.Ready = time.Since(start)
	return nil
}

// commitRollback records that the sandbox now runs from the snapshot of the given lease.
func (m *Manager) commitRollback(s *Sandbox, v *liveVM, was ledger.Record, lease *store.Lease, name string) error {
	target := *lease.Manifest().Ref()
	ownState := was.IsOwnState(target)
	err := s.update(func(r *ledger.Record) {
		r.RolledBackTo(target)
		r.Top, r.Unique = name, was.Unique
	})
	if err != nil {
		return err
	}
	old := []func(){v.below, v.onto}
	if v.lease != nil {
		old = append(old, v.lease.Release)
	}
	err = s.transition(rollBackOp, Running, func() { v.lease, v.below, v.onto = lease, nil, nil })
	if err != nil {
		return err
	}
	cleanup.Call(old...)
	if ownState {
		s.since.Forget()
	} else {
		s.since.Reset()
	}
	for _, f := range append(was.Frozen, durable.FrozenTop{Name: was.Top}) {
		if path := filepath.Join(s.data, f.Name); f.Name != "" && m.refuseWriter(s, v, path) == nil {
			os.Remove(path)
		}
	}
	return nil
}

// mayGoBack checks that the client of ctx may roll a sandbox back to the snapshot that now has the
// given tag. If not, the error is a *store.NotFoundError. The client may always use the snapshot
// that its sandbox was forked from, even if the client cannot see this snapshot, and even after a
// suspension. This exception does not permit the use of another snapshot that has taken the tag
// since.
func (m *Manager) mayGoBack(ctx context.Context, rec *ledger.Record, tag string) error {
	err := m.MayUse(ctx, tag)
	if err != nil && (tag == rec.Tag() || tag == rec.SnapshotTag) && m.cfg.Store.IsInLine(tag, rec.SnapshotID) {
		return nil
	}
	return err
}

// inFamily returns an error unless the client of ctx may roll a sandbox back to the given leased
// snapshot.
func (m *Manager) inFamily(ctx context.Context, rec *ledger.Record, to *store.Lease) error {
	id, tag := to.Manifest().ID, to.Manifest().Tag
	if id == rec.SnapshotID {
		return nil
	}
	if err := m.mayGoBack(ctx, rec, tag); err != nil {
		return err
	}
	if m.cfg.Store.Root(id) != m.cfg.Store.Root(rec.SnapshotID) {
		return &failure.FamilyError{ID: rec.ID, From: tag}
	}
	return nil
}

// Promote makes a sandbox continue from the present state of another sandbox of its family, with
// the memory, disk and processes of that other sandbox. The sandbox keeps its own id, name, labels,
// owner, limits and network policy. Promote branches the other sandbox, which is unchanged, and
// rolls the sandbox back to that branch. If the request gives the branch no tag, the branch is
// deleted when no sandbox runs from it any more.
//
// If the sandboxes are of different families, Promote returns a *failure.FamilyError and makes no branch.
// After the branch, the errors are the same as for Rollback. The sandbox's own state is lost, as in
// a rollback: a caller that needs that state must branch the sandbox first.
func (m *Manager) Promote(ctx context.Context, id, from string, req BranchRequest, strict unique.Strict) (
	r RollbackResult, err error) {
	if id == from {
		return r, invalid.Errorf("from", "%q: want another sandbox", from)
	}
	s, err := m.Get(id)
	other, missing := m.Get(from)
	if err = cmp.Or(err, missing); err == nil &&
		m.cfg.Store.Root(other.Info().StateID) != m.cfg.Store.Root(s.Info().StateID) {
		err = &failure.FamilyError{ID: id, From: from}
	}
	if err != nil {
		return r, err
	}
	req.Transient, req.NoWait = req.Tag == "", false
	b, err := m.Branch(ctx, from, req)
	if err != nil {
		return r, err
	}
	unpin, err := m.cfg.Store.Pin(b.Info.Tag) // keeps the branch even if the other sandbox is deleted
	if err != nil {
		return r, err
	}
	r, err = m.Rollback(ctx, id, b.Info.Tag, strict)
	unpin()
	if err != nil && req.Tag != "" {
		_, _ = m.cfg.Store.Delete(req.Tag, store.DeleteSingle) // fails only if the branch is already in use
	}
	return r, err
}
