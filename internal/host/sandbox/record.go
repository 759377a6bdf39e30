package sandbox

import (
	"github.com/forkd/forkd/internal/host/ledger"
)

// update changes a sandbox's record, on disk first. The caller holds s.ops.
func (s *Sandbox) update(change func(*ledger.Record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record
	change(&r)
	if s.state == Exited || s.state == Stopping {
		s.record = r // the sandbox's directory is being removed
		return nil
	}
	if err := ledger.Write(s.live.dir, &r); err != nil {
		return err
	}
	s.record = r
	return nil
}

// updateAll changes a part of the record that the sandbox keeps in every state. It also changes the
// sandbox's suspended state, even an earlier one: if the sandbox returns to that state, the old
// value must not come back. The caller holds s.ops.
func (s *Sandbox) updateAll(change func(*ledger.Record)) error {
	if err := ledger.UpdateSuspended(s.data, change); err != nil {
		return err
	}
	s.mu.Lock()
	suspended := s.live == nil
	if suspended {
		change(&s.record)
	}
	s.mu.Unlock()
	if suspended {
		return nil
	}
	return s.update(change)
}
