package sandbox

import (
	"context"
	"time"

	"github.com/forkd/forkd/internal/host/hook"
)

// Pause stops the vCPUs of a sandbox. The sandbox keeps its memory, and answers no requests until
// Resume.
func (m *Manager) Pause(ctx context.Context, id string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error {
		v := h.s.live
		return h.s.explain("pause", v, h.s.pause(ctx, v))
	})
}

// Resume continues a paused sandbox, or restores a suspended sandbox under the same id. A sandbox
// whose VM has ended is restored from its latest suspended state, if it has one.
func (m *Manager) Resume(ctx context.Context, id string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error { return h.Resume(ctx, nil) })
}

// Resume is like Manager.Resume. If e is not nil, the sandbox's expiry becomes *e, plus the time
// that restoring takes.
func (h *Held) Resume(ctx context.Context, e *Expiry) error {
	m, s := h.m, h.s
	var expiry func() Expiry
	if start := time.Now(); e != nil {
		expiry = func() Expiry { return e.After(time.Since(start)) }
	}
	switch s.Info().State {
	case Running:
	case Paused:
		if err := m.unpause(ctx, s, s.live); err != nil {
			return s.explain("resume", s.live, err)
		}
	case Suspended:
		return m.bringBack(ctx, s, expiry)
	case Exited:
		if !s.hasSuspension() {
			return s.stateError("resume")
		}
		if err := m.fallBack(s); err != nil {
			return err
		}
		return m.bringBack(ctx, s, expiry)
	default:
		return s.stateError("resume")
	}
	if expiry == nil {
		return nil
	}
	return h.SetExpiry(expiry())
}

// Suspend saves a sandbox to a snapshot on disk and frees its memory; Resume restores the sandbox
// under the same id. Suspend cancels branches that wait for the guest to freeze its file system. It
// frees nothing before the snapshot is on disk. So after an error the sandbox continues (or stays
// paused), and an earlier suspended state is unchanged.
func (m *Manager) Suspend(ctx context.Context, id string) (Info, error) {
	return m.SuspendWith(ctx, id, Suspension{})
}

// Suspension says how a sandbox is suspended. If Timeless is set, the sandbox does not expire
// afterwards. After an error, or if the daemon is killed before the suspension is complete, the old
// expiry applies again. If Encrypt is set, the suspended state is encrypted. The state of a sandbox
// that runs from an encrypted snapshot is always encrypted.
type Suspension struct{ Timeless, Encrypt bool }

// SuspendWith is like Suspend, with options.
func (m *Manager) SuspendWith(ctx context.Context, id string, how Suspension) (i Info, err error) {
	lock := func(s *Sandbox, ctx context.Context) (func(), error) { return m.lockToSuspend(ctx, s, false) }
	if err := m.hook(ctx, id, hook.BeforeSuspend); err != nil {
		return i, err
	}
	err = m.with(ctx, id, lock, func(h *Held) error {
		s, v := h.s, h.s.live
		if how.Timeless {
			startTime, err := m.stopTime(s)
			if err != nil {
				return err
			}
			defer startTime()
		}
		err := s.explain("suspend", v, m.suspend(ctx, s, false, how))
		i = h.Info()
		return err
	})
	return i, err
}
