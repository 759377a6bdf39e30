package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/tally"
	"github.com/forkd/forkd/internal/proto/vm"
)

// finish completes the memory layer and the disk, and publishes the snapshot.
func (b *branch) finish(ctx context.Context) (result BranchResult, err error) {
	defer b.undo.Run()
	defer func() {
		err = b.s.explain(b.op, b.v, err)
		result.Figure = b.figure
		b.m.cfg.Observer.BranchDone(result, err)
	}()
	if b.done.Mode == vm.BranchLive {
		wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), branchTimeout)
		defer cancel()
		copied, err := b.v.vmm.WaitCopied(wait, b.done.Serial)
		b.figure.Faults, b.figure.Stop = copied.Faults, snapshot.Micros(copied.Stop)
		if err != nil {
			return result, fmt.Errorf("%s sandbox %q: copy its memory: %w", b.op, b.s.id, err)
		}
	}
	// The layers are completed even if the client disconnects, but not if the sandbox is deleted.
	// Copying memory has a time limit. Merging disk layers has no time limit, because it copies no
	// more than the layers contain.
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(b.v.calls, end)()
	copying, cancel := context.WithTimeout(alive, branchTimeout)
	defer cancel()
	if b.req.Mode == vm.BranchDisk {
		result.Info, err = b.publishDisk(alive)
		return result, err
	}
	extents, memory := b.done.Save.Extents, []snapshot.File(nil)
	err = b.refuseWriters()
	if err == nil && b.done.Mode != vm.BranchFull {
		extents, memory, err = b.completeMemory(copying)
	}
	if err != nil {
		return result, fmt.Errorf("%s sandbox %q: complete the layers: %w", b.op, b.s.id, err)
	}
	b.staging.Inherit(b.below)
	parent := b.lease.Manifest()
	b.figure.Ready = snapshot.Micros(time.Since(b.start))
	m := &snapshot.Manifest{
		Parent: parent.Ref(), Machine: parent.Machine, Guest: b.guest(),
		Root: b.m.cfg.Store.Root(parent.ID), Memory: memory, Boot: parent.Boot, Branch: new(b.figure),
		Transient: b.req.Transient}
	disk, err := b.disk(alive, m)
	if err == nil {
		err = b.s.mounts.Save(alive, b.m.cfg.Log, b.v.vmm, b.s.record.Volumes, m, b.staging)
	}
	if err != nil {
		return result, fmt.Errorf("%s sandbox %q: complete the disk: %w", b.op, b.s.id, err)
	}
	// The branch is recorded before it is published, because the daemon could be killed between the
	// two steps. A recorded branch without a snapshot is harmless.
	var at *snapshot.Ref // value of r.At before the update, which is restored if Publish fails
	err = b.s.update(func(r *ledger.Record) {
		r.Count++
		if at = r.At; b.stays() {
			r.At = &snapshot.Ref{ID: b.staging.ID(), Tag: b.req.Tag}
		}
	})
	if err != nil {
		return result, err
	}
	// Before the branch is published, record how many requests may have changed the sandbox so far
	// (see package tally). A client that sees the branch must also see that the sandbox has not
	// changed since the branch.
	if b.stays() {
		b.s.since.Mark(b.calls)
	}
	if result.Info, err = b.staging.Publish(m, extents, disk); err != nil {
		b.s.since.Forget()
		err = errors.Join(err, b.s.update(func(r *ledger.Record) {
			r.Count--
			r.At = at
		}))
		return result, err
	}
	b.figure.Ready = snapshot.Micros(time.Since(b.start))
	if b.done.Kept {
		result.Shared = b.rebase(ctx)
	}
	b.countChanges(result.Shared)
	return result, err
}

// completeMemory completes the memory layer with the data that the VMM has not saved. It must be
// called after refuseWriters, because a VMM that still had the layer open could block the daemon's
// writes.
func (b *branch) completeMemory(ctx context.Context) ([]vm.Extent, []snapshot.File, error) {
	layer, err := os.OpenFile(b.layer.Name(), os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer layer.Close()
	return chain.Memory(ctx, layer, b.done.Save.Extents, b.below)
}

// countChanges restarts the counting of changes after a complete branch. The sandbox now shares the
// given number of bytes of memory with the branch.
func (b *branch) countChanges(shared uint64) {
	dirty := b.done.Save.DirtyBytes
	base := &tally.Written{Memory: dirty - min(dirty, shared), Disk: b.fresh}
	switch {
	case b.stays():
		b.s.since.Begin(*base)
	case b.op == "branch":
		b.s.since.Carry(tally.Written{Memory: dirty, Disk: b.topBytes}, base)
	default:
		b.s.since.Carry(tally.Written{Memory: dirty, Disk: b.topBytes}, nil)
	}
}
