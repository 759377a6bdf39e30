package sandbox

import (
	"context"
	"time"

	"github.com/forkd/forkd/internal/host/owner"
)

// Pause stops the vCPUs of a sandbox. It keeps its memory and answers no requests until Resume.
func (m *Manager) Pause(ctx context.Context, id string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error {
		v := h.s.live
		return h.s.explain("pause", v, h.s.pause(ctx, v))
	})
}

// Resume continues a paused sandbox, or restores a suspended one under its id. A sandbox whose VM
// has ended is restored from its latest suspended state, if it has one.
func (m *Manager) Resume(ctx context.Context, id string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error { return h.Resume(ctx, nil) })
}

// Resume is Manager.Resume. If e is not nil, it becomes the sandbox's expiry, extended by the time
// that restoring takes.
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

// Suspend saves a sandbox to a snapshot on disk and frees its memory; Resume restores it under the
// same id. It calls off branches that wait for the guest to come to rest. Nothing is freed until the
// snapshot is on disk: after an error the sandbox runs on (or stays paused), and its earlier
// suspended state is untouched.
func (m *Manager) Suspend(ctx context.Context, id string) (Info, error) {
	if s, err := m.Get(id); err == nil {
		defer s.rests.Clear(&CutOffError{ID: id, Op: "branch", By: bySuspend})()
	}
	return m.change(ctx, id, func(h *Held) error { return h.Suspend(ctx, nil) })
}

// Suspend is Manager.Suspend. If e is not nil, the sandbox does not expire while it is saved, and
// its expiry becomes e when it is suspended. After an error, or if the daemon dies in between, the
// old expiry applies again.
func (h *Held) Suspend(ctx context.Context, e *Expiry) error {
	m, s, v := h.m, h.s, h.s.live
	if e != nil {
		startTime, err := m.stopTime(s)
		if err != nil {
			return err
		}
		defer startTime()
	}
	// The place counts for the sandbox's owner, also if an operator suspends the sandboxes of all.
	leave, err := owner.TakePlace(owner.In(ctx, owner.Owner{}), m.suspends, s.Info().Owner)
	if err != nil {
		return err
	}
	defer leave()
	return s.explain("suspend", v, m.suspend(ctx, s, false, e))
}
