package tenancy

import (
	"context"
	"encoding/json"
	"time"

	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// childLimit is the maximum lifetime of the child that DiskOf forks. The limit is only needed if
// the daemon is killed before DiskOf deletes the child, and the next daemon does not start.
const childLimit = time.Hour

// childNote is the annotation of a child that DiskOf forks. Clients cannot set an annotation.
// Package e2b also writes annotations, but puts data from clients only into fields below the first
// level.
const childNote = `{"disk_of":true}`

// isChild reports whether a sandbox is a child that DiskOf has forked.
func isChild(i sandbox.Info) bool {
	var note struct {
		DiskOf bool `json:"disk_of"`
	}
	return len(i.Annotation) > 0 && json.Unmarshal(i.Annotation, &note) == nil && note.DiskOf
}

// endChildren kills the children that an earlier daemon forked in DiskOf.
func endChildren(m *sandbox.Manager) {
	for _, i := range m.List() {
		if isChild(i) {
			_ = m.Kill(i.ID) // fails only if the child has ended
		}
	}
}

// DiskOf calls the function DiskOf on behalf of the view's principal.
func (v *View) DiskOf(ctx context.Context, tag string) (_ string, release func(), err error) {
	if v.isEmpty() {
		return "", nil, &store.NotFoundError{Tag: tag}
	}
	return DiskOf(v.as(ctx), v.host.manager, sandbox.ForkRequest{Tag: tag, N: 1, TTL: childLimit})
}

// DiskOf returns the tag of a disk-only snapshot with the disk of the snapshot fork.Tag. The
// disk-only snapshot exists at least until release is called. If the snapshot fork.Tag is itself
// disk-only, DiskOf returns fork.Tag. Otherwise DiskOf forks a child and branches the child's disk.
// Copying the snapshot's own disk would not suffice, because data that the guest has written may
// still be in the page cache, which is in the snapshot's memory. The child writes its page cache to
// the disk before the branch.
func DiskOf(ctx context.Context, m *sandbox.Manager, fork sandbox.ForkRequest) (tag string, release func(), err error) {
	if err := m.MayUse(ctx, fork.Tag); err != nil {
		return "", nil, err
	}
	return diskOf(ctx, m, fork)
}

// diskOf does the work of DiskOf for a snapshot that the client may use.
func diskOf(ctx context.Context, m *sandbox.Manager, fork sandbox.ForkRequest) (tag string, release func(), err error) {
	tag = fork.Tag
	d, err := m.Snapshots().Info(tag)
	if err != nil {
		return "", nil, err
	}
	if !d.DiskOnly {
		if fork.Annotation == nil {
			fork.Annotation = json.RawMessage(childNote)
		}
		fork.NoHooks = true
		child, err := m.Fork(ctx, fork)
		if err != nil {
			return "", nil, err
		}
		id := child.Sandboxes[0].ID
		defer func() { _ = m.Kill(id) }() // fails only if the child has ended
		b, err := m.Branch(ctx, id, sandbox.BranchRequest{Mode: vm.BranchDisk, Transient: true, NoHooks: true})
		if err != nil {
			return "", nil, err
		}
		tag = b.Info.Tag
	}
	release, err = m.Snapshots().Pin(tag)
	return tag, release, err
}
