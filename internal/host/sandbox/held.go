package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/cleanup"
)

// Held is a sandbox that nothing else is done with. It is used by the function that With calls, and
// not after that.
type Held struct {
	m    *Manager
	s    *Sandbox
	free cleanup.Stack // lets go of the sandbox
}

// With calls f with a sandbox when no other operation works on it, and has others wait until f
// returns: what f decides by is still so when it acts. A sandbox whose VMM has left a request
// unanswered is asked first. The error is a *NotFoundError for one that the client of ctx may not know
// of; its labels may have changed while it was waited for.
func (m *Manager) With(ctx context.Context, id string, f func(*Held) error) error {
	s, unlock, err := m.lockSandbox(ctx, id)
	if err != nil {
		return err
	}
	h := &Held{m: m, s: s}
	h.free.Add(unlock)
	defer func() { h.free.Run() }()
	return f(h)
}

// change is With for one operation, and describes the sandbox after it.
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

// wake brings the sandbox back if it was suspended for being idle. What is done with it then counts as
// a request.
func (h *Held) wake(ctx context.Context) error {
	if h.s.Info().State == Suspended && h.s.record.AutoResume {
		if err := h.m.bringBack(ctx, h.s, nil); err != nil {
			return err
		}
	}
	h.free.Add(h.s.usage.Begin())
	return nil
}
