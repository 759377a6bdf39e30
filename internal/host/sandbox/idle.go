package sandbox

import (
	"context"
	"errors"
	"time"
)

// minIdle is the shortest idle timeout: suspending takes a good part of a second on a slow disk.
const minIdle = time.Second

func (m *Manager) suspendIdle(s *Sandbox) {
	unlock, err := m.lockToSuspend(s)
	if err != nil {
		return
	}
	defer unlock()
	if s.Info().State != Running {
		return
	}
	if err = s.catchUp(); err == nil {
		err = m.suspend(context.Background(), s, true, nil)
	}
	if err != nil && !errors.Is(err, errBusy) && s.Info().State != Stopping {
		m.cfg.Log.Error("suspend an idle sandbox", "sandbox", s.id, "error", err)
	}
	if err != nil {
		s.usage.Touch() // try again after another timeout
	}
}

// awake returns a sandbox, brought back first if it was suspended for being idle.
func (m *Manager) awake(ctx context.Context, id string) (*Sandbox, error) {
	s, err := m.Get(id)
	if err != nil {
		return nil, err
	}
	info := s.Info()
	if !info.Silent && (info.State == Running || info.State == Exited || info.IdleTimeout == 0) {
		return s, nil
	}
	return s, m.With(ctx, id, func(h *Held) error { return h.wake(ctx) }) // it may be on its way to being suspended
}
