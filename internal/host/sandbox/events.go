package sandbox

import (
	"strings"

	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/excerpt"
)

// kinds has the kind of event for each state that a sandbox can enter after its start.
var kinds = map[State]event.Kind{
	Running: event.SandboxRunning, Paused: event.SandboxPaused, Suspended: event.SandboxSuspended,
	Restoring: event.SandboxRestoring, Exited: event.SandboxExited}

// enteredLocked emits the event that s has entered its present state. It does not emit the events
// of a sandbox's creation and deletion: the Manager's methods add and remove do that.
func (s *Sandbox) enteredLocked(from State, op string) {
	kind, ok := kinds[s.state]
	if from == Starting || !ok {
		return
	}
	e := s.eventLocked(kind, strings.ReplaceAll(op, " ", ""))
	switch {
	case s.state == Exited:
		e.Reason, e.Detail = s.exit.Reason.String(), s.exit.Detail
	case s.state == Paused && s.full:
		e.Reason = "disk_full"
	case s.state == Suspended && s.record.AutoResume:
		e.Reason = "idle"
	}
	s.events.Emit(e)
}

func (s *Sandbox) eventLocked(kind event.Kind, reason string) event.Event {
	return event.Event{Kind: kind, Owner: s.record.Owner, Sandbox: s.id, Snapshot: s.record.Tag(),
		Labels: s.record.Labels, Reason: reason}
}

// event returns an event of s, which the caller must emit.
func (s *Sandbox) event(kind event.Kind, reason string) event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.eventLocked(kind, reason)
}

// transition changes the state of s. It is the only function that writes s.state. If change is not
// nil, transition calls it under the same lock, to change fields that must change together with the
// state. If s may not enter the new state, the error is a *StateError.
func (s *Sandbox) transition(op string, to State, change func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.MayBecome(to) {
		return s.stateErrorLocked(op)
	}
	from := s.state
	s.state = to
	if change != nil {
		change()
	}
	s.enteredLocked(from, op)
	return nil
}

func (s *Sandbox) stateError(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stateErrorLocked(op)
}

func (s *Sandbox) stateErrorLocked(op string) error {
	return &StateError{ID: s.id, Op: op, State: s.state, Full: s.full && s.state == Paused, Exit: s.exit,
		Console: excerpt.Console(s.console.Bytes, 5)}
}
