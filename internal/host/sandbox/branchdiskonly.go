package sandbox

import (
	"cmp"
	"context"
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

// checkDisk returns an error unless a machine can boot from a branch of the sandbox's disk.
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

// askAtRest tells the VMM to branch the disk while the guest's file system is frozen. During that
// time, all writes of programs in the guest have to wait. The guest must freeze its file system
// before the client's context ends. Even if askAtRest returns an error, the VMM may have switched
// to a new top.
func (b *branch) askAtRest(client, ctx context.Context, files vmmclient.BranchFiles) (done vmmproto.BranchResult,
	err error) {
	v, calls, err := b.s.running(b.op)
	rest := b.s.rests.Context()
	if err = cmp.Or(err, context.Cause(rest)); err != nil {
		return done, err
	}
	ctx, stop := vmpool.WhileAlive(ctx, v.vmm)
	defer stop()
	client, leave := vmpool.WhileAlive(client, v.vmm)
	defer leave()
	client, cancel := context.WithCancelCause(client)
	defer cancel(nil)
	defer context.AfterFunc(calls, func() { cancel(context.Cause(calls)) })()
	defer context.AfterFunc(rest, func() { cancel(context.Cause(rest)) })()
	err = agentclient.New(v.guest.Dial).AtRest(client, ctx, func() (err error) {
		done, err = b.ask(ctx, files)
		return err
	})
	return done, vmpool.Cause(ctx, err)
}

// publishDisk completes a disk-only branch. A sandbox cannot be rolled back to such a branch, so
// the branch becomes neither the sandbox's latest snapshot nor a part of the sandbox's line.
func (b *branch) publishDisk(ctx context.Context) (store.Info, error) {
	if err := b.refuseWriters(); err != nil {
		return store.Info{}, fmt.Errorf("%s sandbox %q: complete the disk: %w", b.op, b.s.id, err)
	}
	parent := b.lease.Manifest()
	m := &snapshot.Manifest{
		Parent: parent.Ref(), Machine: parent.Machine, Guest: b.guest(),
		Root: b.m.cfg.Store.Root(parent.ID), Boot: parent.Boot, Branch: &b.figure, Transient: b.req.Transient}
	disk, err := b.disk(ctx, m)
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
