package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/forkd/forkd/internal/host/ledger"
)

// Pause stops a sandbox where it is. It keeps its memory and answers no requests until Resume.
func (m *Manager) Pause(ctx context.Context, id string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error {
		v := h.s.live
		return h.s.explain("pause", v, h.s.pause(ctx, v))
	})
}

// pause stops the VM of s, and writes down first that it is meant to stand still. After an error it
// runs.
func (s *Sandbox) pause(ctx context.Context, v *liveVM) error {
	if err := s.transition("pause", Paused, func() { s.full = false }); err != nil {
		return err
	}
	err := s.update(func(r *ledger.Record) { r.Paused = true })
	if err == nil {
		err = s.stopVM(ctx, v)
	}
	if err != nil {
		err = errors.Join(err, s.update(func(r *ledger.Record) { r.Paused = false }))
		_ = s.transition("pause", Running, nil) // refused where it has ended
	}
	return err
}

// unpause lets the VM of a paused s run again.
func (m *Manager) unpause(ctx context.Context, s *Sandbox, v *liveVM) error {
	if s.record.Paused { // not if it waits for room on the disk, which writing would take
		if err := s.update(func(r *ledger.Record) { r.Paused = false }); err != nil {
			return err
		}
	}
	if err := s.startVM(ctx, v); err != nil {
		return err
	}
	if err := s.transition("resume", Running, func() { s.full = false }); err != nil {
		return err
	}
	s.usage.Touch()
	m.background.Go(v.debts.pay)
	return nil
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
