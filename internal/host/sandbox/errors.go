package sandbox

import "github.com/forkd/forkd/internal/host/state"

// The state of a sandbox, and errors about sandboxes. See package state.
type (
	State         = state.State
	StateError    = state.Error
	CutOffError   = state.CutOffError
	NotFoundError = state.NotFoundError
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
