package sandbox

import (
	"context"
	"os"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/owner"
)

// Held is a locked sandbox: no other operation works on it. It is valid only within the function
// that With calls.
type Held struct {
	m    *Manager
	s    *Sandbox
	free cleanup.Stack // unlocks the sandbox
}

// With locks a sandbox and calls f. Other operations on the sandbox wait until f returns, so the
// state that f reads does not change while f runs. If the VMM has not answered an earlier request,
// With first finds out the outcome of that request. The error is a *NotFoundError if the client of
// ctx may not see the sandbox. With checks this after the wait, because the labels may change
// during the wait.
func (m *Manager) With(ctx context.Context, id string, f func(*Held) error) error {
	return m.with(ctx, id, (*Sandbox).lock, f)
}

// with is like With, for a caller that locks the sandbox in another way.
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
	if s.detached {
		return m.cfg.Away(id)
	}
	if err := s.usable(ctx); err != nil {
		return err
	}
	return f(h)
}

// change is like With, and returns the sandbox's Info after f has returned.
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

// usable returns an error if the VMM of a locked sandbox does not answer. It also returns an error
// if the client of ctx may no longer see the sandbox. This happens if the sandbox's labels have
// changed while the client waited for the lock.
func (s *Sandbox) usable(ctx context.Context) error {
	if i := s.Info(); i.State == Stopping || !owner.PrefixOf(ctx).HasLabels(i.Labels) {
		return &NotFoundError{ID: s.id}
	}
	return s.catchUp()
}

// lock waits until no other operation works on s, and locks s.
func (s *Sandbox) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case s.ops <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.unlock, nil
}

// tryLock locks s if no other operation works on it. It does not wait.
func (s *Sandbox) tryLock() bool {
	select {
	case s.ops <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *Sandbox) unlock() {
	if s.Info().State == Stopping && !s.detached {
		os.RemoveAll(s.data) // again, because the operation that held the lock may have made files since then
	}
	<-s.ops
}
