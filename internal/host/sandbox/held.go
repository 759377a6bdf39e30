package sandbox

import (
	"context"
	"os"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/owner"
)

// Held is a sandbox that no other operation works on. Only the function that With calls may use it,
// until it returns.
type Held struct {
	m    *Manager
	s    *Sandbox
	free cleanup.Stack // releases the sandbox
}

// With calls f with a sandbox when no other operation works on it, and makes others wait until f
// returns. So the state that f reads stays true while f acts. If the VMM has left a request
// unanswered, With first finds out the outcome of that request. The error is a *NotFoundError if
// the client of ctx may not see the sandbox, whose labels may have changed during the wait.
func (m *Manager) With(ctx context.Context, id string, f func(*Held) error) error {
	return m.with(ctx, id, (*Sandbox).lock, f)
}

// with is With for a caller with a lock of its own.
func (m *Manager) with(ctx context.Context, id string, lock func(*Sandbox, context.Context) (func(), error),
	f func(*Held) error) error {
	s, err := m.Get(id)
	if err != nil {
		return err
	}
	unlock, err := lock(s, ctx)
	if err != nil {
		return err
	}
	h := &Held{m: m, s: s}
	h.free.Add(unlock)
	defer func() { h.free.Run() }()
	if err := s.usable(ctx); err != nil {
		return err
	}
	return f(h)
}

// change is With for one operation. It returns the sandbox's description after it.
func (m *Manager) change(ctx context.Context, id string, f func(*Held) error) (i Info, err error) {
	err = m.With(ctx, id, func(h *Held) error {
		if err := f(h); err != nil {
			return err
		}
		i = h.Info()
		return nil
	})
	return i, err
}

// Info describes the sandbox as it is now.
func (h *Held) Info() Info { return h.s.Info() }

// usable refuses a locked sandbox whose VMM does not answer, and one that the client of ctx may no
// longer see, because its labels changed while it waited for the lock.
func (s *Sandbox) usable(ctx context.Context) error {
	if i := s.Info(); i.State == Stopping || !owner.PrefixOf(ctx).HasLabels(i.Labels) {
		return &NotFoundError{ID: s.id}
	}
	return s.catchUp()
}

// lock waits until no other operation works on s.
func (s *Sandbox) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case s.ops <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.unlock, nil
}

// tryLock is lock without waiting.
func (s *Sandbox) tryLock() bool {
	select {
	case s.ops <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *Sandbox) unlock() {
	if s.Info().State == Stopping {
		os.RemoveAll(s.data) // again: the operation may have made files during the first removal
	}
	<-s.ops
}
