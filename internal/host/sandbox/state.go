package sandbox

import (
	"fmt"
	"slices"
)

// State says where a sandbox is in its life.
type State int

// The states, without the last. Paused and running have a VM; suspended has none, and exited one
// that ended by itself.
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
// A sandbox that starts is suspended at once where a daemon takes over one that an earlier daemon
// had suspended. Restoring is a rollback, or a suspended sandbox that is being brought back; where
// the latter fails it is suspended again. An exited sandbox that was suspended before can go back
// to that state. Every state can become stopping, which is the last: the sandbox is being deleted.
// A sandbox whose agent did not confirm its identity is never running.
const (
	Starting State = iota
	Running
	Paused
	Suspended
	Restoring
	Exited
	Stopping
)

// next has the states that may follow each: the drawing above, as the code that decides.
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

// hasVM reports whether a sandbox in state s has a VM that runs or could.
func (s State) hasVM() bool { return s == Running || s == Paused }

// String returns the state as the API spells it.
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
