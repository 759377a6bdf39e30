package tenancy

import (
	"context"
	"errors"
	"io"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/diff"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// DiffRequest asks for the differences between two snapshots or sandboxes.
type DiffRequest struct {
	// From and To are tags of snapshots or ids of sandboxes. If From is empty, To must be a
	// sandbox, which is then compared with the snapshot that it runs from.
	From, To string

	diff.Request // callers do not set the fields for leases
}

// DiffResult is the answer to a DiffRequest.
type DiffResult struct {
	diff.Result
	From string // From of the request or, if From was empty, the tag of the snapshot that the sandbox runs from

	// MemoryBytes is an upper bound of the memory that differs; nil if one side has no memory.
	MemoryBytes *uint64
}

// Diff compares the files of two snapshots or sandboxes, and computes how much of their memory may
// differ. For the files, it makes a disk-only snapshot of each side. For the memory, it reads the
// memory map of the snapshot that a side runs from. Before Diff returns, it deletes all snapshots
// and children that it has made. If the daemon is killed, the next daemon deletes them.
func (v *View) Diff(ctx context.Context, d *diff.Differ, req DiffRequest) (r DiffResult, err error) {
	err = v.prepare(ctx, d, &req, func(ctx context.Context, old, now *side) (err error) {
		r.From = req.From
		if r.Result, err = d.Compare(ctx, req.Request); err != nil {
			return err
		}
		if old.memory != nil && now.memory != nil {
			n := diff.MemoryBytes(old.memory, now.memory) + old.dirty + now.dirty
			r.MemoryBytes = &n
		}
		return nil
	})
	return r, err
}

// Export makes a tar archive of the files that differ, as Differ.Export does. It checks and
// prepares both sides as Diff does. It writes the archive to the writer that begin(from) returns,
// where from is the name of the older side, as in DiffResult.From.
func (v *View) Export(ctx context.Context, d *diff.Differ, req DiffRequest,
	begin func(from string) io.Writer) error {
	return v.prepare(ctx, d, &req, func(ctx context.Context, _, _ *side) error {
		return d.Export(ctx, req.Request, func() io.Writer { return begin(req.From) })
	})
}

// prepare sets From and the leases of req, and passes the two sides of the comparison to the given
// function. After this function has returned, prepare deletes the snapshots and children that it
// has made.
func (v *View) prepare(ctx context.Context, d *diff.Differ, req *DiffRequest,
	compare func(_ context.Context, old, now *side) error) error {
	if v.isEmpty() {
		return &store.NotFoundError{Tag: req.To}
	}
	ctx = v.as(ctx)
	var undo cleanup.Stack
	defer undo.Run()
	hidden := false // the client cannot see From, but may use it, because its sandbox runs from it
	if req.From == "" {
		i, err := v.runs(req.To)
		if err != nil {
			return err
		}
		if req.From = i.SnapshotTag; v.hasTag(req.From) != nil {
			unpin, err := v.pinOrigin(i)
			if err != nil {
				return err
			}
			undo.Add(unpin)
			hidden = true
		}
	}
	if req.From == req.To {
		return invalid.Errorf("from", "%q: the same as to", req.From)
	}
	// Check both sides before the first snapshot is made.
	for i, name := range []string{req.From, req.To} {
		if i == 0 && hidden {
			continue
		}
		if err := v.hasSide(name); err != nil {
			return err
		}
	}
	ctx, end, err := d.Begin(ctx)
	if err != nil {
		return err
	}
	undo.Add(end)
	now, err := v.side(ctx, &undo, req.To)
	if err != nil {
		return err
	}
	oldCtx := ctx
	if hidden {
		o := owner.Of(ctx)
		o.Prefix = ""
		oldCtx = owner.In(ctx, o)
	}
	old, err := v.side(oldCtx, &undo, req.From)
	if err != nil && hidden && ctx.Err() == nil {
		err = &store.NotFoundError{Tag: req.From} // the text of the error is about another client's snapshot
	}
	if err != nil {
		return err
	}
	req.Request.Old, req.Request.New = old.disk, now.disk
	return compare(ctx, &old, &now)
}

// The method runs returns the Info of a sandbox, for a request that compares the sandbox with the
// snapshot that it runs from.
func (v *View) runs(id string) (i sandbox.Info, err error) {
	if !vmpool.IsID(id) {
		return i, invalid.Errorf("from", "missing: want the tag of a snapshot or the id of a sandbox, unless to is a sandbox")
	}
	return v.Sandbox(id)
}

// pinOrigin keeps the snapshot that a sandbox was forked from, with its tag, until unpin is called.
// If that snapshot was deleted, another client may have given its tag to another snapshot. Then
// pinOrigin returns a *store.NotFoundError, and the other snapshot can still be deleted.
func (v *View) pinOrigin(i sandbox.Info) (unpin func(), err error) {
	s := v.host.manager.Snapshots()
	if s.IsInLine(i.SnapshotTag, i.StateID) {
		if unpin, err := s.Pin(i.SnapshotTag); err == nil {
			if s.IsInLine(i.SnapshotTag, i.StateID) { // the snapshot may have been replaced before the pin
				return unpin, nil
			}
			unpin()
		}
	}
	return nil, &store.NotFoundError{Tag: i.SnapshotTag}
}

// hasSide returns an error if the principal may not see the snapshot or sandbox with the given
// name.
func (v *View) hasSide(name string) error {
	if vmpool.IsID(name) {
		_, err := v.Sandbox(name)
		return err
	}
	if err := v.hasTag(name); err != nil {
		return err
	}
	_, err := v.host.manager.Snapshots().Info(name)
	return err
}

// side is one side of a comparison.
type side struct {
	disk   *store.Lease // disk-only snapshot with the files
	memory *store.Lease // snapshot with the memory; nil: the side has no memory
	dirty  uint64       // bytes of memory written since the snapshot in the field memory
}

// side prepares the side with the given name. It adds the release of leases and snapshots to the
// given cleanup stack.
func (v *View) side(ctx context.Context, undo *cleanup.Stack, name string) (s side, err error) {
	m := v.host.manager
	disk := name
	if vmpool.IsID(name) {
		disk, err = v.sandboxSide(ctx, undo, name, &s)
	} else {
		s.memory, err = leased(undo, m.Snapshots().Acquire, name)
	}
	if err != nil {
		return s, err
	}
	isolated := netclient.Isolated()
	fork := sandbox.ForkRequest{Tag: disk, N: 1, TTL: childLimit, Network: &isolated, Strict: unique.Report}
	tag, release, err := diskOf(ctx, m, fork)
	if err != nil {
		return s, err
	}
	undo.Add(release)
	if s.disk, err = m.Snapshots().AcquireDisk(tag); err != nil {
		return s, err
	}
	undo.Add(s.disk.Release)
	if !vmpool.IsID(name) {
		err = m.MayUse(ctx, name) // another snapshot may have taken the tag while this request waited
	}
	return s, err
}

// leased calls the function acquire to lease a snapshot. The lease is nil if the snapshot has no
// memory.
func leased(undo *cleanup.Stack, acquire func(string) (*store.Lease, error), name string) (*store.Lease, error) {
	l, err := acquire(name)
	if none := (*store.DiskOnlyError)(nil); errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	undo.Add(l.Release)
	return l, nil
}

// sandboxSide returns the tag of a snapshot with the files of a sandbox, and sets the fields of s that
// describe its memory.
func (v *View) sandboxSide(ctx context.Context, undo *cleanup.Stack, id string, s *side) (string, error) {
	m := v.host.manager
	i, err := v.Sandbox(id)
	if err != nil {
		return "", err
	}
	if i.State == sandbox.Suspended {
		s.memory, err = leased(undo, m.Snapshots().Acquire, i.StateTag)
		return i.StateTag, err
	}
	// The agent of a paused sandbox cannot write the page cache to the disk. A child of the sandbox
	// writes it instead.
	branch := sandbox.BranchRequest{Mode: vm.BranchDisk, Transient: true, NoHooks: true}
	if i.State == sandbox.Paused {
		branch.Mode = vm.BranchLive
	}
	b, err := m.Branch(ctx, id, branch)
	if err != nil {
		return "", err
	}
	unpin, err := m.Snapshots().Pin(b.Info.Tag)
	if err != nil {
		return "", err
	}
	undo.Add(unpin)
	if branch.Mode == vm.BranchLive {
		s.memory, err = leased(undo, m.Snapshots().Acquire, b.Info.Tag)
		return b.Info.Tag, err
	}
	v.runningMemory(ctx, undo, id, b.Info.Parent, s)
	return b.Info.Tag, nil
}

// runningMemory sets the fields of s that describe the memory of a running sandbox. The sandbox's
// VM was restored from the snapshot with the given tag. If the sandbox has just ended,
// runningMemory sets nothing.
func (v *View) runningMemory(ctx context.Context, undo *cleanup.Stack, id, from string, s *side) {
	m := v.host.manager
	stats, _ := m.Stats(ctx, id)
	i, err := v.Sandbox(id)
	if stats.PID == 0 || err != nil { // ignore the error of Stats: PID is set even if other figures are missing
		return
	}
	acquire, of := m.Snapshots().Acquire, from
	if i.RebasedOnto != "" {
		acquire, of = m.Snapshots().AcquireFollowed, i.RebasedOnto
	}
	if lease, err := leased(undo, acquire, of); err == nil {
		s.memory, s.dirty = lease, stats.VMM.GuestDirtyBytes
	}
}
