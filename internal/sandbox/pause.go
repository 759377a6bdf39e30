package sandbox

import (
	"context"
	"errors"
)

// Pause stops a sandbox where it is. It keeps its memory and answers no requests until Resume.
func (m *Manager) Pause(ctx context.Context, id string) (Info, error) {
	s, unlock, err := m.lockSandbox(ctx, id)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	if err := m.pause(ctx, s); err != nil {
		return Info{}, s.ended("pause", err)
	}
	return s.Info(), nil
}

// pause stops the VM of s, and writes down first that it is meant to stand still. After an error it runs.
func (m *Manager) pause(ctx context.Context, s *Sandbox) error {
	if err := s.enter("pause", Paused); err != nil {
		return err
	}
	err := s.update(func(r *record) { r.Paused = true })
	if err == nil {
		err = s.stopVM(ctx)
	}
	if err != nil {
		err = errors.Join(err, s.update(func(r *record) { r.Paused = false }))
		s.transition(Running)
	}
	return err
}

// unpause lets the VM of a paused s run again.
func (m *Manager) unpause(ctx context.Context, s *Sandbox) error {
	if err := s.update(func(r *record) { r.Paused = false }); err != nil {
		return err
	}
	if err := s.startVM(ctx); err != nil {
		return err
	}
	if err := s.enter("resume", Running); err != nil {
		return err
	}
	s.usage.begin()() // its idleness begins now
	return nil
}

// settlePause puts a VM that an earlier daemon left, or that did not answer, into the state that it was meant to be in:
// one that stands still without having been paused on request was about to be suspended, and runs on.
func (s *Sandbox) settlePause(paused bool) error {
	switch {
	case paused && !s.record.Paused:
		return s.startVM(context.Background())
	case !paused && s.record.Paused:
		return s.update(func(r *record) { r.Paused = false })
	}
	return nil
}

// Resume lets a paused sandbox run on, or brings a suspended one back under its id. One whose VM has ended comes back from
// its latest suspended state, if it has one.
func (m *Manager) Resume(ctx context.Context, id string) (Info, error) {
	s, unlock, err := m.lockSandbox(ctx, id)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	info := s.Info()
	switch info.State {
	case Running:
		return info, nil
	case Paused:
		err = s.ended("resume", m.unpause(ctx, s))
	case Suspended:
		s, err = m.bringBack(ctx, s)
	case Exited:
		if !s.hasSuspension() {
			return Info{}, s.stateError("resume")
		}
		var last *Sandbox
		if last, err = m.lastSuspension(s); err == nil {
			s, err = m.bringBack(ctx, last)
		}
	default:
		return Info{}, s.stateError("resume")
	}
	if err != nil {
		return Info{}, err
	}
	return s.Info(), nil
}
