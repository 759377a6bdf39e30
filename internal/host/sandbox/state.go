package sandbox

import (
	"fmt"
	"slices"
)

// State is a sandbox's state.
type State int

// The states; the drawing omits Stopping. Paused and running sandboxes have a VM, a suspended
// sandbox has none, and the VM of an exited sandbox has ended by itself.
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
// When a daemon takes over a sandbox that an earlier daemon had suspended, it goes from starting to
// suspended at once. Restoring means a rollback, or the resumption of a suspended sandbox; if the
// latter fails, the sandbox is suspended again. An exited sandbox that was suspended before can
// return to that state. Every state can become stopping, the last one, in which the sandbox is
// being deleted. A sandbox whose agent did not confirm its identity is never running.
const (
	Starting State = iota
	Running
	Paused
	Suspended
	Restoring
	Exited
	Stopping
)

// next lists the states that may follow each state. It is the drawing above in code, and the code
// is what counts.
var next = map[State][]State{
	Starting:  {Running, Suspended, Stopping},
	Running:   {Paused, Restoring, Exited, Stopping},
	Paused:    {Running, Suspended, Restoring, Exited, Stopping},
	Suspended: {Restoring, Stopping},
	Restoring: {Running, Suspended, Exited, Stopping},
	Exited:    {Suspended, Stopping},
	Stopping:  {},
}

// mayBecome reports whether a sandbox in state s may enter to.
func (s State) mayBecome(to State) bool { return slices.Contains(next[s], to) }

// hasVM reports whether a sandbox in state s has a VM that runs or is paused.
func (s State) hasVM() bool { return s == Running || s == Paused }

// String returns the API's name of the state.
func (s State) String() string {
	switch s {
	case Starting:
		return "starting"
	case Running:
		return "running"
	case Paused:
		return "paused"
	case Suspended:
		return "suspended"
	case Restoring:
		return "restoring"
	case Exited:
		return "exited"
	case Stopping:
		return "stopping"
	}
	return fmt.Sprintf("state %d", int(s))
}
