package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/hook"
	"github.com/forkd/forkd/internal/host/idle"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// expiryRetry is the time between a suspension that failed, for example on a full disk, and the
// next attempt.
const expiryRetry = time.Minute

// SetExpiry replaces the expiry of a sandbox in any state. If the old expiry has passed, the error
// is a *NotFoundError. The sandbox of a workspace cannot have an expiry: the error is a *HeldError.
func (h *Held) SetExpiry(e Expiry) error {
	s := h.s
	if w := h.Info().Workspace; w != "" && !e.At.IsZero() {
		return &failure.HeldError{Op: "limit the time of", ID: s.id, Workspace: w}
	}
	if err := s.updateAll(e.Write); err != nil {
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

// stopTime stops the expiry of a sandbox until startTime is called. The record keeps the expiry. If
// the daemon is killed before startTime, the next daemon applies the expiry. The errors are the
// same as for SetExpiry. The caller must hold s.ops.
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

// setTimer starts the timer for the expiry that is in a sandbox's record.
func (m *Manager) setTimer(s *Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
	if at := s.record.Expires; !at.IsZero() && s.state != Stopping {
		s.expiry = time.AfterFunc(time.Until(at), func() { m.timed.Do(func() { m.expire(s) }) })
	}
}

// stopTimers stops the expiry and the idle timeout of a sandbox that is leaving the list.
func (s *Sandbox) stopTimers() {
	s.usage.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry != nil {
		s.expiry.Stop()
	}
}

// expire handles the expiry of a sandbox. It does nothing if the expiry was extended while the
// timer fired.
func (m *Manager) expire(s *Sandbox) {
	s.mu.Lock()
	due, suspends := s.dueLocked(), s.record.ExpirySuspends
	s.expired = due && !suspends
	s.mu.Unlock()
	switch {
	case !due:
	case suspends: // one call at a time is enough, because suspendExpired reads the expiry after it has the lock
		s.expiring.Do(func() { m.suspendExpired(s) })
	default:
		_ = m.remove(s) // fails if another call is deleting s
	}
}

func (s *Sandbox) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dueLocked()
}

// +checklocks:s.mu
func (s *Sandbox) dueLocked() bool {
	return s.workspace == "" && !s.timeless && !s.record.Expires.IsZero() && !time.Now().Before(s.record.Expires)
}

// suspendExpired suspends a sandbox, after other operations on it have ended. It deletes an exited
// sandbox that has no suspended state.
func (m *Manager) suspendExpired(s *Sandbox) {
	// A hook that fails does not prevent the suspension. A hook can delay the suspension by at most
	// the hook's time limit.
	_ = m.hook(m.timed.Context(), s.id, hook.BeforeSuspend)
	unlock, err := m.lockToSuspend(m.timed.Context(), s, false)
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
	case !state.HasVM():
		return // the sandbox is suspended already
	}
	if err = s.catchUp(); err == nil {
		err = m.suspend(context.Background(), s, false, Suspension{})
	}
	if err == nil || s.Info().State == Stopping {
		return
	}
	m.cfg.Log.Error("suspend a sandbox whose time has passed", "sandbox", s.id, "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiry = time.AfterFunc(expiryRetry, func() { m.timed.Do(func() { m.expire(s) }) })
}

func (m *Manager) suspendIdle(s *Sandbox) {
	if m.works(s) || m.hook(m.timed.Context(), s.id, hook.BeforeSuspend) != nil {
		s.usage.Touch() // try again after another timeout
		return
	}
	unlock, err := m.lockToSuspend(m.timed.Context(), s, true)
	if err != nil {
		return
	}
	defer unlock()
	if s.Info().State != Running {
		return
	}
	if err = s.catchUp(); err == nil {
		err = m.suspend(context.Background(), s, true, Suspension{})
	}
	if err != nil && !errors.Is(err, errBusy) && s.Info().State != Stopping {
		m.cfg.Log.Error("suspend an idle sandbox", "sandbox", s.id, "error", err)
	}
	if err != nil {
		s.usage.Touch() // try again after another timeout
	}
}

// works reports whether the guest of a sandbox is busy even though no client uses the sandbox.
func (m *Manager) works(s *Sandbox) bool {
	v, calls, err := s.running("measure")
	stats := func(ctx context.Context) (netproto.Stats, error) { return s.link().Stats(ctx) }
	return err == nil && (&idle.Guest{Usage: v.vmm.Usage, Net: stats, Dial: v.guest.Dial}).Works(calls, m.timed.Context())
}
