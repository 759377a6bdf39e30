package sandbox

import (
	"context"
	"errors"
	"os"
	"time"

	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/proto/vm"
)

// keeps reports whether the sandbox is to be rebased onto the branch. A suspended one has no memory
// that could be, and a full branch has none of the layers that the sandbox's other pages lie on.
func (b *branch) keeps() bool { return b.op == "branch" && b.req.Mode != vm.BranchFull }

// chooseBelow chooses the snapshot that the branch's memory layer lies on: what the sandbox was
// rebased onto last, or, when the line of such branches has become long, or cannot be used, the
// snapshot that it runs from. In that case the layer has all that was written since.
func (b *branch) chooseBelow(rec *ledger.Record) {
	b.below, b.line = b.lease, 1
	if rec.Rebased == nil || b.req.Mode == vm.BranchFull {
		return
	}
	b.whole = true
	below, err := b.m.cfg.Store.AcquireFollowed(rec.Rebased.ID)
	if err != nil {
		b.m.cfg.Log.Warn("the last branch of a sandbox cannot be used, the next one has all its memory", "sandbox", b.s.id,
			"error", err)
		return
	}
	b.undo.Add(below.Release)
	if !chain.EndLine(rec.Rebased.Line, len(below.Layers())) {
		b.below, b.line, b.whole = below, rec.Rebased.Line+1, false
	}
}

// rebaseTimeout is how long a VMM may take. It copies nothing; while it is waited for, the branch
// keeps its place among those of the host.
const rebaseTimeout = 30 * time.Second

// rebase puts the memory of the sandbox onto the published branch and returns how many bytes it
// shares with it now. The branch is there whatever becomes of this: if it fails, the next one has
// the same pages once more.
func (b *branch) rebase(ctx context.Context) (shared uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rebaseTimeout)
	defer cancel()
	shared, err := b.tryRebase(ctx)
	switch {
	case errors.Is(err, vm.ErrNotKept):
		b.m.cfg.Log.Info("a sandbox was not rebased onto its branch", "sandbox", b.s.id, "snapshot", b.req.Tag, "reason", err)
	case err != nil && b.s.Info().State.hasVM():
		b.m.cfg.Log.Warn("rebase a sandbox onto its branch", "sandbox", b.s.id, "snapshot", b.req.Tag, "error", err)
	}
	return shared
}

func (b *branch) tryRebase(ctx context.Context) (shared uint64, err error) {
	s, v, id := b.s, b.v, b.staging.ID()
	layer, err := os.Open(b.layer.Name()) // for reading only: children share it
	if err != nil {
		return 0, err
	}
	defer layer.Close()
	unfollow, err := b.m.cfg.Store.Follow(id)
	if err != nil { // it has been deleted already
		return 0, err
	}
	stats, err := v.vmm.Stats(ctx)
	if s.answered(err) == nil {
		// Before anything is replaced: what has been is no longer private, and whoever takes the
		// sandbox over must know that.
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

// follow keeps what the memory of a VM lies on that was taken over, and what it may lie on. Without
// it the VM runs on all the same, and its next branch has all that it has written since its fork.
func (m *Manager) follow(v *liveVM, r *ledger.Record) {
	get := func(id string) func() {
		unfollow, err := m.cfg.Store.Follow(id)
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
