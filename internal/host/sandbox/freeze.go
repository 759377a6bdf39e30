package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/tally"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// freeze saves state, memory and disk as they are at one instant. Afterwards the sandbox continues.
func (b *branch) freeze(ctx context.Context) error {
	rec, v, err := b.s.withVM(b.op)
	// First settle an earlier branch or rebase whose outcome could not be recorded.
	if err == nil && (rec.Pending != nil || rec.Rebasing != nil) {
		if _, err = b.s.settle(context.Background(), v); err == nil {
			rec, v, err = b.s.withVM(b.op)
		}
	}
	if err == nil && b.s.secret && b.req.Mode != vm.BranchDisk {
		err = &StateError{ID: rec.ID, Op: b.op, Secret: true}
	}
	if err != nil {
		return err
	}
	lease, err := b.m.leased(b.s, b.op, v)
	if err != nil {
		return err
	}
	if b.req.ParentTag != "" && b.req.ParentTag != rec.SnapshotTag && b.req.ParentTag != rec.Tag() {
		return invalid.Errorf("parent_tag", "%q: the sandbox runs from %q", b.req.ParentTag, rec.Tag())
	}
	if b.lease, err = b.m.cfg.Store.Acquire(lease.Manifest().Tag); err != nil {
		return err
	}
	b.undo.Add(b.lease.Release)
	b.secret = b.req.Encrypt || b.lease.Encrypted()
	if err := b.chooseBelow(&rec); err != nil {
		return err
	}
	stage := b.m.cfg.Store.Stage
	if b.req.Replace {
		stage = b.m.cfg.Store.StageOver
	}
	if b.staging, err = stage(b.req.Tag); err != nil {
		return err
	}
	b.undo.Add(b.staging.Discard)
	if b.secret {
		if err := b.staging.Encrypt(ctx, b.lease, b.req.Mode == vm.BranchDisk, len(rec.Volumes) > 0); err != nil {
			return err
		}
	}
	b.staging.For(b.s.Info().Owner, b.lease)
	b.staging.Hurry(v.vmm.Hurry)
	if b.op == "suspend" {
		b.staging.Awaited()
	}
	files := vmmclient.BranchFiles{MemoryBytes: b.lease.Manifest().Machine.MemoryBytes}
	if b.req.Mode == vm.BranchDisk {
		err = b.checkDisk()
	} else {
		err = b.createMemory(&files)
	}
	if err != nil {
		return err
	}
	var top *os.File
	if b.lease.Manifest().Disk != nil {
		if top, err = b.prepareTop(ctx, rec); err != nil {
			return err
		}
		defer top.Close()
		files.Tops = append([]*os.File{top}, b.tops.New...)
		if files.Frozen, err = chain.Reopened(&b.undo, append(b.lower[len(b.lower)-1:], b.tops.Frozen...)); err != nil {
			return err
		}
	}
	client := ctx
	// The new context does not end when the client disconnects, because the outcome of the branch
	// must be known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), branchTimeout)
	defer cancel()
	b.calls = b.s.since.Calls()
	if b.req.Mode == vm.BranchDisk {
		b.done, err = b.askAtRest(client, ctx, files)
	} else {
		b.done, err = b.ask(ctx, files)
	}
	b.figure = snapshot.Branch{SandboxID: b.s.id, Mode: b.done.Mode.String(), Template: b.req.Template,
		Fallback: b.done.Fallback,
		Pause:    snapshot.Micros(b.done.Pause), DirtyBytes: b.done.Save.DirtyBytes, After: rec.At, Labels: b.req.Labels}
	if err != nil && !errors.Is(err, vmmclient.ErrNoAnswer) {
		err = errors.Join(err, b.refuseKeeper(top))
	}
	if _, settled := b.s.settle(context.Background(), b.v); settled != nil {
		return errors.Join(err, settled)
	}
	if err != nil {
		return fmt.Errorf("%s sandbox %q: %w", b.op, b.s.id, err)
	}
	return nil
}

// copyPoll is the interval between requests to a VMM that is still copying a branch for an earlier
// daemon.
const copyPoll = 50 * time.Millisecond

// ask tells the VMM to make the branch. A VMM that is still copying a live branch of an earlier
// daemon refuses the request and changes nothing. So the function repeats the request until the VMM
// has finished copying.
func (b *branch) ask(ctx context.Context, files vmmclient.BranchFiles) (vmmproto.BranchResult, error) {
	for {
		done, err := b.v.vmm.Branch(ctx, vmmproto.Branch{Mode: b.req.Mode, MaxExtents: vmmExtents,
			Keep: b.keeps(), SinceRestore: b.whole}, files)
		if !errors.Is(err, vm.ErrCopying) {
			return done, err
		}
		select {
		case <-time.After(copyPoll):
		case <-ctx.Done():
			return done, err
		}
	}
}

// prepareTop makes the sandbox's next top. It records that the VMM may use this top from now on.
func (b *branch) prepareTop(ctx context.Context, rec ledger.Record) (*os.File, error) {
	s := b.s
	for _, f := range append(slices.Clone(rec.Frozen), durable.FrozenTop{Name: rec.Top, Owner: b.staging.ID()}) {
		file, err := os.Open(filepath.Join(s.data, f.Name))
		if err != nil {
			return nil, fmt.Errorf("open a disk top of sandbox %q: %w", rec.ID, err)
		}
		b.undo.Add(func() { file.Close() })
		b.lower, b.owners = append(b.lower, file), append(b.owners, f.Owner)
	}
	stats, err := b.v.vmm.Stats(ctx)
	if err != nil {
		return nil, err
	}
	if b.tops, err = s.mounts.Freeze(ctx, b.m.cfg.Log, b.v.vmm, rec.Volumes, &b.undo); err != nil {
		return nil, err
	}
	name := rec.NextTop()
	top, err := chain.NewTop(filepath.Join(s.data, name), b.lease.Manifest().Disk.SizeBytes, b.m.cfg.NewTop)
	if err != nil {
		return nil, err
	}
	err = s.update(func(r *ledger.Record) {
		r.Tops++
		r.Pending = &durable.PendingTop{Name: name, Owner: b.staging.ID(), Swaps: stats.TopSwaps,
			Volumes: b.tops.Names}
	})
	if err != nil {
		top.Close()
		return nil, errors.Join(err, os.Remove(filepath.Join(s.data, name)))
	}
	b.topBytes, b.fresh = tally.DiskBytes(filepath.Join(s.data, rec.Top)), tally.DiskBytes(top.Name())
	return top, nil
}
