package sandbox

import (
	"errors"
	"time"

	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
)

// update changes a sandbox's record, on disk first.
func (s *Sandbox) update(change func(*record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record
	change(&r)
	if s.state == Exited || s.state == Stopping {
		s.record = r // its directory is going
		return nil
	}
	if err := writeRecord(s.dir, &r); err != nil {
		return err
	}
	s.record = r
	return nil
}

// branchable returns the record and the lease of a sandbox with a VM, or a *StateError.
func (s *Sandbox) branchable() (record, *store.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Running && s.state != Paused {
		return record{}, nil, s.stateErrorLocked("branch")
	}
	return s.record, s.lease, nil
}

// ended prefers the end of the VM to the error that came of it.
func (s *Sandbox) ended(op string, err error) error {
	if err == nil || s.vmm == nil {
		return err
	}
	if errors.Is(err, vmmclient.ErrGone) { // its process is about to end
		select {
		case <-s.vmm.Done():
		case <-time.After(lastGasp):
		}
	}
	select {
	case <-s.vmm.Done():
		return &StateError{ID: s.record.ID, Op: op, State: Exited, Exit: s.vmm.Exit()}
	default:
		return err
	}
}

func (s *Sandbox) stateError(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stateErrorLocked(op)
}

func (s *Sandbox) stateErrorLocked(op string) error {
	return &StateError{ID: s.record.ID, Op: op, State: s.state, Exit: s.exit, Console: consoleTail(s.console, 5)}
}

// enter is transition with a *StateError where it is not allowed.
func (s *Sandbox) enter(op string, next State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.mayFollow(next) {
		return s.stateErrorLocked(op)
	}
	s.state = next
	return nil
}
