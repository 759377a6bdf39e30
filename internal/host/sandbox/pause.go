package sandbox

import (
	"context"
	"time"
)

// Pause stops a sandbox where it is. It keeps its memory and answers no requests until Resume.
func (m *Manager) Pause(ctx context.Context, id string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error {
		v := h.s.live
		return h.s.explain("pause", v, h.s.pause(ctx, v))
	})
}

// Resume lets a paused sandbox run on, or brings a suspended one back under its id. One whose VM
// has ended comes back from its latest suspended state, if it has one.
func (m *Manager) Resume(ctx context.Context, id string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error { return h.Resume(ctx, nil) })
}

// Resume is Manager.Resume. The sandbox has the expiry e then, if that is not nil; the time that it
// takes to bring the sandbox back is added to it.
func (h *Held) Resume(ctx context.Context, e *Expiry) error {
	m, s := h.m, h.s
	var expiry func() Expiry
	if start := time.Now(); e != nil {
		expiry = func() Expiry { return e.after(time.Since(start)) }
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

// Suspend saves a sandbox to a snapshot on disk and frees its memory; Resume brings it back under
// the same id. Until the snapshot is on disk nothing is given up: after an error the sandbox runs
// on (or stays paused), its earlier suspended state untouched.
func (m *Manager) Suspend(ctx context.Context, id string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error { return h.Suspend(ctx, nil) })
}

// Suspend is Manager.Suspend. If e is not nil, the time that the sandbox has had does not pass while it
// is saved, and its expiry is e when it is suspended. After an error, and where the daemon dies in
// between, it has that time again.
func (h *Held) Suspend(ctx context.Context, e *Expiry) error {
	m, s, v := h.m, h.s, h.s.live
	if e != nil {
		startTime, err := m.stopTime(s)
		if err != nil {
			return err
		}
		defer startTime()
	}
	leave, err := takePlace(ctx, m.suspends, s.Info().Owner)
	if err != nil {
		return err
	}
	defer leave()
	return s.explain("suspend", v, m.suspend(ctx, s, false, e))
}
