package tenancy

import (
	"context"
	"time"

	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// childLimit is the lifetime of the child that DiskOf forks. It matters only if the daemon is
// killed in between.
const childLimit = time.Hour

// DiskOf calls the function DiskOf for the view's principal.
func (v *View) DiskOf(ctx context.Context, tag string) (_ string, release func(), err error) {
	if v.isEmpty() {
		return "", nil, &store.NotFoundError{Tag: tag}
	}
	return DiskOf(v.as(ctx), v.host.manager, sandbox.ForkRequest{Tag: tag, N: 1, TTL: childLimit})
}

// DiskOf returns a disk-only snapshot with the disk of a snapshot, held until release is called. A
// disk-only snapshot is returned itself. Otherwise DiskOf forks a child, whose guest writes its
// page cache back, and branches the child's disk: data that a guest has written may be only in the
// memory of its snapshot.
func DiskOf(ctx context.Context, m *sandbox.Manager, fork sandbox.ForkRequest) (tag string, release func(), err error) {
	tag = fork.Tag
	if err := m.MayUse(ctx, tag); err != nil {
		return "", nil, err
	}
	d, err := m.Snapshots().Info(tag)
	if err != nil {
		return "", nil, err
	}
	if !d.DiskOnly {
		child, err := m.Fork(ctx, fork)
		if err != nil {
			return "", nil, err
		}
		id := child.Sandboxes[0].ID
		defer func() { _ = m.Kill(id) }() // fails only if the child has ended
		b, err := m.Branch(ctx, id, sandbox.BranchRequest{Mode: vm.BranchDisk, Transient: true})
		if err != nil {
			return "", nil, err
		}
		tag = b.Info.Tag
	}
	release, err = m.Snapshots().Pin(tag)
	return tag, release, err
}
