package sandbox

import (
	"fmt"

	"github.com/forkd/forkd/internal/host/state"
)

type NotFoundError struct{ ID string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("sandbox %.100q: not found ('forkd ls' lists what there is)", e.ID)
}

// The state of a sandbox, and errors about states. See package state.
type (
	State       = state.State
	StateError  = state.Error
	CutOffError = state.CutOffError
)

// States of a sandbox.
const (
	Starting  = state.Starting
	Running   = state.Running
	Paused    = state.Paused
	Suspended = state.Suspended
	Restoring = state.Restoring
	Exited    = state.Exited
	Stopping  = state.Stopping
)
