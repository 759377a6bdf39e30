package tenancy

import (
	"context"

	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// DiskOf returns a disk-only snapshot with the disk of tag, held until release is called. That is
// tag itself if it is disk-only, else a branch of a child forked for this, whose guest first writes
// its page cache back: data written before a snapshot with memory may be in that memory only.
func (v *View) DiskOf(ctx context.Context, tag string) (_ string, release func(), err error) {
	if v.isEmpty() {
		return "", nil, &store.NotFoundError{Tag: tag}
	}
	ctx, m := v.as(ctx), v.host.manager
	if err := m.MayUse(ctx, tag); err != nil {
		return "", nil, err
	}
	d, err := m.Snapshots().Info(tag)
	if err != nil {
		return "", nil, err
	}
	if !d.DiskOnly {
		child, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: 1})
		if err != nil {
			return "", nil, err
		}
		id := child.Sandboxes[0].ID
		defer func() { _ = m.Kill(id) }() // fails only if it has ended
		b, err := m.Branch(ctx, id, sandbox.BranchRequest{Mode: vm.BranchDisk, Transient: true})
		if err != nil {
			return "", nil, err
		}
		tag = b.Info.Tag
	}
	release, err = m.Snapshots().Pin(tag)
	return tag, release, err
}
