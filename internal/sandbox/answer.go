package sandbox

import (
	"context"
	"errors"

	"github.com/forkd/forkd/internal/vmm/vmmclient"
)

// heard passes on the outcome of a request to the VMM of s. After one without an answer nobody knows whether the VM
// stands still or runs: s is marked, and the next operation asks before it does anything (see catchUp). A question that
// its caller gave up says nothing about the VMM.
func (s *Sandbox) heard(err error) error {
	if errors.Is(err, vmmclient.ErrNoAnswer) && !errors.Is(err, context.Canceled) {
		s.mu.Lock()
		s.silent = true
		s.mu.Unlock()
	}
	return err
}

// stopVM and startVM pause and resume the VM of s. Who asked for it may have gone: it is done all the same, in the time
// that the VMM is given.
func (s *Sandbox) stopVM(ctx context.Context) error {
	return s.heard(s.vmm.Pause(context.WithoutCancel(ctx)))
}

func (s *Sandbox) startVM(ctx context.Context) error {
	return s.heard(s.vmm.Resume(context.WithoutCancel(ctx)))
}

// behind reports whether the VMM of s has left requests unanswered, or may be using a disk top that the record only
// announces. The caller holds s.ops: while a branch is under way the latter is as it should be.
func (s *Sandbox) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vmm != nil && (s.state == Running || s.state == Paused) && (s.silent || s.record.Pending != nil)
}

// catchUp finds out what became of requests that the VMM of s did not answer, and brings record, state and VM into line.
// The caller holds s.ops. An error means that the VMM still does not answer.
func (m *Manager) catchUp(s *Sandbox) error {
	if !s.behind() {
		return nil
	}
	paused, err := m.settle(s)
	if err == nil {
		err = s.settlePause(paused)
	}
	if errors.Is(err, vmmclient.ErrGone) {
		return nil // its state says so soon
	}
	if err != nil {
		return s.heard(err)
	}
	s.mu.Lock()
	s.silent = false
	next := Running
	if s.record.Paused {
		next = Paused
	}
	s.mu.Unlock()
	s.transition(next) // refused where it is so already, or has ended
	return nil
}
