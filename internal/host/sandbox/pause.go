package sandbox

import (
	"context"
	"errors"
	"time"
)

// Pause stops a sandbox where it is. It keeps its memory and answers no requests until Resume.
func (m *Manager) Pause(ctx context.Context, id string) (Info, error) {
	s, unlock, err := m.lockSandbox(ctx, id)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	v := s.live
	if err := s.pause(ctx, v); err != nil {
		return Info{}, s.explain("pause", v, err)
	}
	return s.Info(), nil
}

// pause stops the VM of s, and writes down first that it is meant to stand still. After an error it
// runs.
func (s *Sandbox) pause(ctx context.Context, v *liveVM) error {
	if err := s.transition("pause", Paused, func() { s.full = false }); err != nil {
		return err
	}
	err := s.update(func(r *record) { r.Paused = true })
	if err == nil {
		err = s.stopVM(ctx, v)
	}
	if err != nil {
		err = errors.Join(err, s.update(func(r *record) { r.Paused = false }))
		_ = s.transition("pause", Running, nil) // refused where it has ended
	}
	return err
}

// unpause lets the VM of a paused s run again.
func (m *Manager) unpause(ctx context.Context, s *Sandbox, v *liveVM) error {
	if s.record.Paused { // not if it waits for room on the disk, which writing would take
		if err := s.update(func(r *record) { r.Paused = false }); err != nil {
			return err
		}
	}
	if err := s.startVM(ctx, v); err != nil {
		return err
	}
	if err := s.transition("resume", Running, func() { s.full = false }); err != nil {
		return err
	}
	s.usage.touch()
	m.background.Go(v.debts.pay)
	return nil
}

// Resume lets a paused sandbox run on, or brings a suspended one back under its id. One whose VM
// has ended comes back from its latest suspended state, if it has one.
func (m *Manager) Resume(ctx context.Context, id string) (Info, error) {
	return m.ResumeWith(ctx, id, keepExpiry)
}

// ResumeWith is Resume, and ChangeExpiry of the sandbox as it was before, in one step. The time
// that it takes to bring the sandbox back is added to the new expiry.
func (m *Manager) ResumeWith(ctx context.Context, id string, change ExpiryChange) (Info, error) {
	s, unlock, err := m.lockSandbox(ctx, id)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	start := time.Now()
	e, changes := change(s.Info())
	var expiry func() Expiry
	if changes {
		expiry = func() Expiry {
			if e.At.IsZero() {
				return e
			}
			return Expiry{At: e.At.Add(time.Since(start)), Suspends: e.Suspends}
		}
	}
	if err := m.resume(ctx, s, expiry); err != nil {
		return Info{}, err
	}
	return s.Info(), nil
}

// resume is Resume of a sandbox whose ops the caller holds. Its expiry is then as expiry says; if
// that is nil, as it was, or as bringBack has it.
func (m *Manager) resume(ctx context.Context, s *Sandbox, expiry func() Expiry) error {
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
	_, err := m.setExpiry(s, expiry())
	return err
}

// BringBack resumes a sandbox that is suspended, and has its time pass after it has run for lasts.
// It waits for one that is being suspended or brought back, and leaves one in any other state as it
// is, with the time that it has. All this is one step, so that it overwrites neither a pause nor
// another time that somebody asks for meanwhile.
func (m *Manager) BringBack(ctx context.Context, id string, lasts time.Duration) (Info, error) {
	s, unlock, err := m.lockSandbox(ctx, id)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	i := s.Info()
	if i.State != Suspended {
		return i, nil
	}
	err = m.bringBack(ctx, s, func() Expiry { return Expiry{At: time.Now().Add(lasts), Suspends: i.ExpirySuspends} })
	if err != nil {
		return Info{}, err
	}
	return s.Info(), nil
}
