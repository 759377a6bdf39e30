package sandbox

import (
	"cmp"
	"context"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/hook"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// SetHooks replaces the hooks of a sandbox in any state. Later branches inherit them. A rollback does
// not change them.
func (m *Manager) SetHooks(ctx context.Context, id string, hooks snapshot.Hooks) (Info, error) {
	if err := ledger.CheckHooks("", hooks); err != nil {
		return Info{}, err
	}
	return m.change(ctx, id, func(h *Held) error {
		return h.s.updateAll(func(r *ledger.Record) { r.Hooks = hooks })
	})
}

// hook runs a hook of a sandbox. The caller must not hold the sandbox's lock, because a hostile
// guest could delay the end of the hook. If the sandbox does not run, no hook runs. There is one
// exception: if a sandbox was suspended because it was idle, it is resumed before a branch, and the
// hook counts as use of the sandbox.
func (m *Manager) hook(ctx context.Context, id string, at hook.Point) error {
	s, err := m.Get(id)
	if err != nil || hook.Of(s.Info().Hooks, at) == nil {
		return err
	}
	end := func() {}
	if at == hook.BeforeBranch {
		if s, err = m.awake(ctx, id); err != nil {
			return err
		}
		end = s.usage.Begin()
	}
	call, err := s.guestCall(ctx, "run a hook in", end)
	if err != nil { // the sandbox does not run, and the operation decides what follows
		end()
		return nil
	}
	defer call.stop()
	s.mu.Lock()
	rec := s.record
	s.mu.Unlock()
	return m.hooks().Run(call.ctx, call.dial, &rec, at)
}

// hookIn runs a hook in a VM that no other request can reach yet.
func (m *Manager) hookIn(ctx context.Context, v *liveVM, r *ledger.Record, at hook.Point) error {
	if hook.Of(r.Hooks, at) == nil {
		return nil
	}
	ctx, stop := vmpool.WhileAlive(ctx, v.vmm)
	defer stop()
	// If the VM has ended, the operation fails, whatever the hook's policy is.
	return cmp.Or(m.hooks().Run(ctx, v.guest.Dial, r, at), context.Cause(ctx))
}

func (m *Manager) hooks() *hook.Runner { return &hook.Runner{Log: m.cfg.Log, Events: m.cfg.Events} }
