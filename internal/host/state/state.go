// Package state holds the states of a sandbox, the permitted changes of a state, and the error of an operation
// that a state does not permit.
//
// It takes no locks: package sandbox keeps the state of each sandbox.
package state

import (
	"fmt"
	"slices"
)

// State is a sandbox's state.
type State int

// States of a sandbox. The drawing omits stopping. Running and paused sandboxes have a VM. A
// suspended sandbox has no VM. The VM of an exited sandbox has ended by itself.
//
//	      starting
//	   ┌─────┘└───────────────────┐
//	   ▼                          ▼
//	running ◀────▶ paused ───▶ suspended ◀──── exited
//	   ▲              │           ▲               ▲
//	   │              ▼           │               │
//	   └────────▶ restoring ◀─────┘     running, paused, restoring:
//	                                    the VM ended by itself
//
// When a daemon takes over a sandbox that an earlier daemon had suspended, the sandbox changes
// directly from starting to suspended. A sandbox is in the state restoring during a rollback, and
// while it is resumed after a suspension. If the resumption fails, the sandbox becomes suspended
// again. An exited sandbox that has a suspended state can return to that state. Every state can
// become stopping, which is the last state: the sandbox is being deleted. A sandbox is not running
// before its agent has confirmed its identity.
const (
	Starting State = iota
	Running
	Paused
	Suspended
	Restoring
	Exited
	Stopping
)

// next has the states that may follow each state. It is the drawing above as code.
var next = map[State][]State{
	Starting:  {Running, Suspended, Stopping},
	Running:   {Paused, Restoring, Exited, Stopping},
	Paused:    {Running, Suspended, Restoring, Exited, Stopping},
	Suspended: {Restoring, Stopping},
	Restoring: {Running, Suspended, Exited, Stopping},
	Exited:    {Suspended, Stopping},
	Stopping:  {},
}

// MayBecome reports whether a sandbox in state s may enter the given state.
func (s State) MayBecome(to State) bool { return slices.Contains(next[s], to) }

// HasVM reports whether a sandbox in state s has a VM that has not ended.
func (s State) HasVM() bool { return s == Running || s == Paused }

// names has the names of the states in the API.
var names = [...]string{Starting: "starting", Running: "running", Paused: "paused", Suspended: "suspended",
	Restoring: "restoring", Exited: "exited", Stopping: "stopping"}

// String returns the name of the state in the API.
func (s State) String() string {
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("state %d", int(s))
	}
	return names[s]
}
