package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Time limits of the guest for a disk-only branch.
const (
	restTimeout = 5 * time.Minute  // to write back its whole page cache
	wakeTimeout = 30 * time.Second // longer than the rest can last; after it the agent has ended the rest
)

// checkDisk returns an error if a machine could not boot from a branch of the sandbox's disk.
func (b *branch) checkDisk() error {
	m := b.lease.Manifest()
	switch {
	case m.Disk == nil:
		return invalid.Errorf("memory", "false: the sandbox has no disk")
	case m.Boot == nil:
		return invalid.Errorf("memory", "false: snapshot %q does not say what its parent booted from; bake it again", m.Tag)
	}
	return nil
}

// askAtRest has the VMM branch the disk while the guest's file system is at rest. Programs that
// write wait for that time. Even if it returns an error of the guest, the VMM may have taken the
// new top.
func (b *branch) askAtRest(ctx context.Context, files vmmclient.BranchFiles) (done vmmproto.BranchResult, err error) {
	v, _, err := b.s.running(b.op)
	if err != nil {
		return done, err
	}
	ctx, stop := vmpool.WhileAlive(ctx, v.vmm)
	defer stop()
	guest := agentclient.New(v.guest.Dial)
	err = within(ctx, restTimeout, guest.Freeze)
	if err == nil {
		done, err = b.ask(ctx, files)
		err = errors.Join(err, within(ctx, wakeTimeout, guest.Thaw))
	}
	return done, vmpool.Cause(ctx, err)
}

// within calls f, which waits for the guest, with a deadline.
func within(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest did not answer within %v", limit))
	defer cancel()
	return vmpool.Cause(ctx, f(ctx))
}

// publishDisk completes a disk-only branch. The sandbox cannot be rolled back to it, so it becomes
// neither the snapshot that the sandbox is at nor part of its line.
func (b *branch) publishDisk() (store.Info, error) {
	if err := b.refuseWriters(); err != nil {
		return store.Info{}, fmt.Errorf("%s sandbox %q: complete the disk: %w", b.op, b.s.id, err)
	}
	parent := b.lease.Manifest()
	m := &snapshot.Manifest{
		Parent: &snapshot.Ref{ID: parent.ID, Tag: parent.Tag}, Machine: parent.Machine, Guest: b.guest(),
		Boot: parent.Boot, Branch: &b.figure, Transient: b.req.Transient,
	}
	disk, err := b.disk(m)
	if err != nil {
		return store.Info{}, fmt.Errorf("%s sandbox %q: complete the disk: %w", b.op, b.s.id, err)
	}
	b.figure.Ready = snapshot.Micros(time.Since(b.start))
	info, err := b.staging.PublishDisk(m, disk)
	if err != nil {
		return info, err
	}
	b.s.since.CarryDisk(b.topBytes, b.fresh)
	return info, b.s.update(func(r *ledger.Record) { r.Count++ })
}
