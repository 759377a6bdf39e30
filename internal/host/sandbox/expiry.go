package sandbox

import (
	"context"
	"time"
)

// expiryRetry is when a suspension is tried again that failed, as on a full disk.
const expiryRetry = time.Minute

// SetExpiry replaces the expiry of a sandbox in any state. The error is a *NotFoundError where its
// time has passed meanwhile.
func (h *Held) SetExpiry(e Expiry) error {
	s := h.s
	if err := s.updateAll(e.write); err != nil {
		return err
	}
	h.m.setTimer(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expired {
		return &NotFoundError{ID: s.id}
	}
	return nil
}

// stopTime has the time of a sandbox not pass until startTime is called. That is written nowhere:
// should the daemon die meanwhile, the sandbox has its time in the next one. The error is that of
// SetExpiry. The caller holds s.ops.
func (m *Manager) stopTime(s *Sandbox) (startTime func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expired {
		return nil, &NotFoundError{ID: s.id}
	}
	s.timeless = true
	return func() {
		s.mu.Lock()
		s.timeless = false
		s.mu.Unlock()
		m.setTimer(s)
	}, nil
}

// setTimer has a sandbox expire when its record says.
func (m *Manager) setTimer(s *Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
	if at := s.record.Expires; !at.IsZero() && s.state != Stopping {
		s.expiry = time.AfterFunc(time.Until(at), func() { m.expire(s) })
	}
}

// expire ends the time of a sandbox, unless it was given more of it while its timer fired.
func (m *Manager) expire(s *Sandbox) {
	s.mu.Lock()
	due, suspends := s.dueLocked(), s.record.ExpirySuspends
	s.expired = due && !suspends
	s.mu.Unlock()
	switch {
	case !due:
	case suspends:
		m.suspendExpired(s)
	default:
		_ = m.remove(s) // refused where another call deletes it
	}
}

func (s *Sandbox) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dueLocked()
}

func (s *Sandbox) dueLocked() bool {
	return !s.timeless && !s.record.Expires.IsZero() && !time.Now().Before(s.record.Expires)
}

// suspendExpired suspends a sandbox when whatever else is done with it is finished. One that has
// exited and left nothing to bring back is deleted.
func (m *Manager) suspendExpired(s *Sandbox) {
	unlock, err := m.lockToSuspend(s)
	if err != nil {
		return
	}
	defer unlock()
	s.mu.Lock()
	due, state := s.dueLocked(), s.state
	s.mu.Unlock()
	switch {
	case !due:
		return
	case state == Exited && !s.hasSuspension():
		_ = m.remove(s)
		return
	case !state.hasVM():
		return // it is suspended already
	}
	if err = s.catchUp(); err == nil {
		err = m.suspend(context.Background(), s, false, nil)
	}
	if err == nil || s.Info().State == Stopping {
		return
	}
	m.cfg.Log.Error("suspend a sandbox whose time has passed", "sandbox", s.id, "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiry = time.AfterFunc(expiryRetry, func() { m.expire(s) })
}
