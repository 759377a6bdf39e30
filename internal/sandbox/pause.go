package sandbox

import "context"

// Pause stops a sandbox where it is. It keeps its memory and answers no requests until Resume.
func (m *Manager) Pause(ctx context.Context, id string) (Info, error) {
	s, unlock, err := m.lockSandbox(ctx, id)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	if err := m.pause(ctx, s); err != nil {
		return Info{}, err
	}
	return s.Info(), nil
}

// pause stops the VM of s. After an error it runs.
func (m *Manager) pause(ctx context.Context, s *Sandbox) error {
	if err := s.enter("pause", Paused); err != nil {
		return err
	}
	if err := s.vmm.Pause(context.WithoutCancel(ctx)); err != nil {
		s.transition(Running)
		return err
	}
	return nil
}

// unpause lets the VM of a paused s run again.
func (m *Manager) unpause(ctx context.Context, s *Sandbox) error {
	if err := s.vmm.Resume(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return s.enter("resume", Running)
}

// Resume lets a paused sandbox run on, or brings a suspended one back under its id.
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
		err = m.unpause(ctx, s)
	case Suspended:
		s, err = m.bringBack(ctx, s)
	default:
		s.mu.Lock()
		err = s.stateErrorLocked("resume")
		s.mu.Unlock()
	}
	if err != nil {
		return Info{}, err
	}
	return s.Info(), nil
}
