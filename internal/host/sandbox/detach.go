package sandbox

import (
	"path/filepath"

	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/ledger"
)

// Detach removes a suspended sandbox from the list, and keeps its files. It keeps the snapshot of the
// suspended state too, until the caller calls unpin. Adopt reverses Detach.
func (h *Held) Detach() (unpin func(), err error) {
	s := h.s
	if i := h.Info(); i.Workspace != "" {
		return nil, &failure.HeldError{Op: "move", ID: s.id, Workspace: i.Workspace}
	} else if i.State != Suspended {
		return nil, s.stateError("move")
	}
	if err := s.transition("move", Stopping, func() { s.detached, unpin = true, s.unpin }); err != nil {
		return nil, err // it is being deleted
	}
	s.stopTimers()
	h.m.drop(s, "move")
	return unpin, nil
}

// Adopt adds the suspended sandbox whose files are in the data directory of the given id.
func (m *Manager) Adopt(id string) error {
	r, err := ledger.FindSuspended(m.cfg.RunDir, filepath.Join(m.cfg.DataDir, id))
	if err != nil {
		return err
	}
	return m.recoverSuspended(id, r)
}
