package sandbox

import (
	"context"
	"errors"
	"time"
)

// minIdle is the minimum idle timeout, because suspending takes most of a second on a slow disk.
const minIdle = time.Second

func (m *Manager) suspendIdle(s *Sandbox) {
	unlock, err := m.lockToSuspend(m.timed.Context(), s, true)
	if err != nil {
		return
	}
	defer unlock()
	if s.Info().State != Running {
		return
	}
	if err = s.catchUp(); err == nil {
		err = m.suspend(context.Background(), s, true, false)
	}
	if err != nil && !errors.Is(err, errBusy) && s.Info().State != Stopping {
		m.cfg.Log.Error("suspend an idle sandbox", "sandbox", s.id, "error", err)
	}
	if err != nil {
		s.usage.Touch() // try again after another timeout
	}
}
