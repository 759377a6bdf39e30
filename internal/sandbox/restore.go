package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// newTopOver makes an empty top called name in the data directory of s for the disk of lease; nil if that has none.
func (m *Manager) newTopOver(s *Sandbox, lease *store.Lease, name string) (*os.File, error) {
	d := lease.Manifest().Disk
	if d == nil {
		return nil, nil
	}
	return m.newTop(filepath.Join(s.data, name), d.SizeBytes)
}

// restoreVM puts the snapshot of lease into a VMM, with top, from newTopOver, on its disk.
func (m *Manager) restoreVM(ctx context.Context, s *Sandbox, lease *store.Lease, top *os.File) error {
	release, err := acquire(ctx, m.restores)
	if err != nil {
		return err
	}
	defer release()
	files := vmmclient.RestoreFiles{State: lease.State(), Layers: lease.Layers()}
	req := vmmproto.Restore{Extents: lease.Extents(), VMGenID: newGenID(), Resume: true}
	if d := lease.Manifest().Disk; d != nil {
		files.Disks = [][]*os.File{append(slices.Clone(lease.Disk()), top)}
		req.Disks = []vmmproto.Disk{{SizeBytes: d.SizeBytes}}
	}
	s.timing.Restore, err = s.vmm.Restore(ctx, req, files)
	return err
}

// RollbackResult is how long a rollback took, from the request.
type RollbackResult struct {
	Info  Info
	Tag   string        // the snapshot it is at
	VMM   time.Duration // until its vCPUs ran
	Ready time.Duration // until its agent had confirmed
}

// Rollback puts a sandbox back to the snapshot to (empty: the one it runs from): memory, disk, vCPUs and devices, in the
// same VMM process and under the same id. Its line is the snapshot it runs from, the ancestors of that, and the branches
// made of it; others are refused. Up to the restoring itself a failure leaves the sandbox as it is. After that there is
// nothing to go back to: a sandbox that fails or does not confirm is killed, and the *RollbackError says so.
func (m *Manager) Rollback(ctx context.Context, id, to string) (r RollbackResult, err error) {
	start := time.Now()
	s, unlock, err := m.lockAwake(ctx, id)
	if err != nil {
		return r, err
	}
	defer unlock()
	defer func() { m.cfg.Observer.RollbackDone(err) }()
	rec, old, err := s.branchable()
	if err != nil {
		return r, err
	}
	if to == "" {
		to = rec.SnapshotTag
	}
	var undo cleanup.Stack
	defer undo.Run()
	lease, err := m.cfg.Store.Acquire(to)
	if err != nil {
		return r, err
	}
	undo.Add(lease.Release)
	if err := m.inLine(rec, old, lease); err != nil {
		return r, err
	}
	name := fmt.Sprintf("%s.%d", topName, rec.Tops+1)
	top, err := m.newTopOver(s, lease, name)
	if err != nil {
		return r, err
	}
	if top != nil {
		defer top.Close()
		undo.Add(func() { os.Remove(top.Name()) })
	}
	if err := s.update(func(r *record) { r.Restoring, r.Tops = true, r.Tops+1 }); err != nil {
		return r, err
	}
	if err := s.enter("roll back", Restoring); err != nil {
		return r, err
	}
	err = m.rollBack(ctx, s, lease, top, &r, start)
	if err == nil {
		err = m.commitRollback(s, rec, lease, name)
	}
	if err != nil {
		failed := &RollbackError{ID: id, Tag: to, Err: err}
		console, _ := m.cfg.VMMs.Console(s.dir)
		failed.Console = consoleTail(console, 5)
		_ = m.Kill(id) // it fails only if the sandbox is gone
		return r, failed
	}
	undo.Release()
	old.Release()
	r.Info, r.Tag = s.Info(), to
	return r, nil
}

// rollBack restores and waits for the agent. The request's end does not stop it half-way.
func (m *Manager) rollBack(ctx context.Context, s *Sandbox, lease *store.Lease, top *os.File, r *RollbackResult,
	start time.Time) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), branchTimeout)
	defer cancel()
	if err := m.restoreVM(ctx, s, lease, top); err != nil {
		return err
	}
	r.VMM = time.Since(start)
	if err := m.confirm(ctx, s, s.record.Env); err != nil {
		m.cfg.Observer.ConfirmFailed()
		return &unconfirmedError{id: s.record.ID, err: err}
	}
	r.Ready = time.Since(start)
	return nil
}

// commitRollback makes the snapshot of lease the one that the sandbox runs from.
func (m *Manager) commitRollback(s *Sandbox, was record, lease *store.Lease, name string) error {
	target := lease.Manifest()
	err := s.update(func(r *record) {
		r.Restoring, r.Paused, r.Frozen, r.Top = false, false, nil, name
		if r.SnapshotID != target.ID {
			r.Origin, r.SnapshotTag, r.SnapshotID, r.Branches = "", target.Tag, target.ID, nil
		}
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.lease = lease
	s.mu.Unlock()
	for _, f := range append(was.Frozen, frozenTop{Name: was.Top}) {
		if f.Name != "" {
			os.Remove(filepath.Join(s.data, f.Name))
		}
	}
	return s.enter("roll back", Running)
}

// inLine reports whether a sandbox may be rolled back to the snapshot of to.
func (m *Manager) inLine(rec record, from, to *store.Lease) error {
	id := to.Manifest().ID
	if id == rec.SnapshotID || slices.Contains(rec.Branches, id) {
		return nil
	}
	line, err := m.cfg.Store.Detail(from.Manifest().Tag)
	if err != nil {
		return err
	}
	if slices.Contains(line.AncestorIDs, id) {
		return nil
	}
	return &LineError{ID: rec.ID, Tag: to.Manifest().Tag, Line: append(line.Ancestors, rec.SnapshotTag)}
}

// lockSandbox waits until no other operation works on a sandbox. One whose VMM does not answer is refused.
func (m *Manager) lockSandbox(ctx context.Context, id string) (*Sandbox, func(), error) {
	s, err := m.Get(id)
	if err != nil {
		return nil, nil, err
	}
	unlock, err := acquire(ctx, s.ops)
	if err != nil {
		return nil, nil, err
	}
	s, err = m.Get(id) // it may have been replaced, or be gone
	if err == nil {
		err = m.catchUp(s)
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return s, unlock, nil
}
