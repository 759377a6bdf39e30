package sandbox

import (
	"context"
	"errors"
	"os"
	"time"

	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// keeps reports whether the sandbox will be rebased onto the branch. After a suspension there is no
// memory to rebase. A full branch inherits no layers, so it cannot replace the layers of the
// sandbox. The layer of an encrypted branch does not stay in RAM.
func (b *branch) keeps() bool { return b.op == "branch" && b.req.Mode != vm.BranchFull && !b.secret }

// chooseBelow chooses the snapshot below the branch's memory layer. Usually it chooses the branch
// that the sandbox was last rebased onto. If the line of such branches has become long, or cannot
// be used, chooseBelow takes the snapshot from which the sandbox runs. The layer then holds all
// pages written since that snapshot. If such a layer would exceed the sandbox's memory limit, the
// line continues beyond its usual length. If the line cannot continue, chooseBelow returns an
// error. An encrypted branch is never based on the line, whose layers may be unencrypted.
func (b *branch) chooseBelow(rec *ledger.Record) error {
	b.below, b.line = b.lease, 1
	if rec.Rebased == nil || b.req.Mode == vm.BranchFull || b.req.Mode == vm.BranchDisk {
		return nil
	}
	b.whole = true
	below, err := b.m.cfg.Store.AcquireFollowed(rec.Rebased.ID)
	if err != nil {
		b.m.cfg.Log.Warn("the last branch of a sandbox cannot be used, the next one has all its memory", "sandbox", b.s.id,
			"error", err)
		return nil
	}
	b.undo.Add(below.Release)
	if end, _ := chain.EndLine(b.m.cfg.Store, rec.Rebased, rec.MemoryBytes); end || b.secret {
		tooMuch := b.checkWhole(rec, below)
		// Check again, but ignore how many rebases the line has.
		end, _ := chain.EndLine(b.m.cfg.Store, &durable.Rebased{ID: rec.Rebased.ID}, rec.MemoryBytes)
		if tooMuch == nil || b.secret || end && b.op != "suspend" {
			return tooMuch
		}
	}
	b.below, b.line, b.whole = below, rec.Rebased.Line+1, false
	return nil
}

// checkWhole returns an error if a branch that ends the sandbox's line would exceed the sandbox's
// memory limit. Such a branch needs memory, because all pages that the sandbox shares with its line
// become private.
func (b *branch) checkWhole(rec *ledger.Record, below *store.Lease) error {
	use, err := b.v.vmm.Usage()
	if err != nil || rec.Limits.MemoryMiB == 0 {
		return nil
	}
	shared := chain.LineBytes(below, b.lease)
	if use.OwnBytes+shared > (rec.Limits.MemoryMiB+rec.Limits.SwapMiB)<<20 {
		return invalid.Errorf("limits.memory_mib", "%d: this branch needs up to %d MiB of memory for pages that the sandbox "+
			"shares with its earlier branches, and %d MiB are in use; set a larger limit, or suspend and resume the sandbox",
			rec.Limits.MemoryMiB, shared>>20, use.OwnBytes>>20)
	}
	return nil
}

// rebaseTimeout is how long a VMM may take to rebase, which copies nothing. Until the VMM answers,
// the branch holds one of the host's places for branches.
const rebaseTimeout = 30 * time.Second

// rebase rebases the memory of the sandbox onto the published branch. It returns how many bytes the
// sandbox now shares with the branch. If rebase fails, the branch exists nevertheless, and the next
// branch contains the same pages again.
func (b *branch) rebase(ctx context.Context) (shared uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rebaseTimeout)
	defer cancel()
	shared, err := b.tryRebase(ctx)
	switch {
	case errors.Is(err, vm.ErrNotKept):
		b.m.cfg.Log.Info("a sandbox was not rebased onto its branch", "sandbox", b.s.id, "snapshot", b.req.Tag, "reason", err)
	case err != nil && b.s.Info().State.HasVM():
		b.m.cfg.Log.Warn("rebase a sandbox onto its branch", "sandbox", b.s.id, "snapshot", b.req.Tag, "error", err)
	}
	return shared
}

func (b *branch) tryRebase(ctx context.Context) (shared uint64, err error) {
	s, v, id := b.s, b.v, b.staging.ID()
	layer, err := os.Open(b.layer.Name()) // read-only, because children share the file
	if err != nil {
		return 0, err
	}
	defer layer.Close()
	unfollow, err := b.m.cfg.Store.Follow(id, s.Info().Owner)
	if err != nil { // the branch has been deleted
		return 0, err
	}
	stats, err := v.vmm.Stats(ctx)
	if s.answered(err) == nil {
		// Record the rebase before any page is replaced. Replaced pages are no longer private, and
		// a daemon that takes over the sandbox must know that.
		err = s.update(func(r *ledger.Record) {
			r.Rebasing = &durable.PendingRebase{To: durable.Rebased{ID: id, Line: b.line}, Rebases: stats.Rebases}
		})
	}
	if err == nil {
		err = s.swapLeases(func() { v.onto = unfollow })
	}
	if err != nil {
		unfollow()
		return 0, err
	}
	result, err := v.vmm.Rebase(ctx, b.done.Serial, layer)
	_, settled := s.settle(context.Background(), v)
	return result.Bytes, errors.Join(s.answered(err), settled)
}

// follow takes leases of the branches that a VM's memory is based on, or may be based on. It is
// called after the VM has been taken over. Without the leases the VM still runs, but its next
// branch holds all pages that the VM has written since its fork.
func (m *Manager) follow(v *liveVM, r *ledger.Record) {
	get := func(id string) func() {
		unfollow, err := m.cfg.Store.Follow(id, r.Owner)
		if err != nil {
			m.cfg.Log.Warn("the last branch of a sandbox cannot be used", "sandbox", r.ID, "error", err)
		}
		return unfollow
	}
	if r.Rebased != nil {
		v.below = get(r.Rebased.ID)
	}
	if r.Rebasing != nil {
		v.onto = get(r.Rebasing.To.ID)
	}
}
