package sandbox

import (
	"errors"
	"testing"
)

// For every pair of states, the test checks that the transition is permitted if it is in the
// drawing in package state. Every other transition must be refused, and must leave the state as it was.
func TestTransitions(t *testing.T) {
	drawn := map[[2]State]bool{
		{Starting, Running}: true, {Starting, Suspended}: true, {Starting, Stopping}: true,
		{Running, Paused}: true, {Running, Restoring}: true, {Running, Exited}: true, {Running, Stopping}: true,
		{Paused, Running}: true, {Paused, Suspended}: true, {Paused, Restoring}: true, {Paused, Exited}: true,
		{Paused, Stopping}:     true,
		{Suspended, Restoring}: true, {Suspended, Stopping}: true,
		{Restoring, Running}: true, {Restoring, Suspended}: true, {Restoring, Exited}: true, {Restoring, Stopping}: true,
		{Exited, Suspended}: true, {Exited, Stopping}: true,
	}
	for from := Starting; from <= Stopping; from++ {
		for to := Starting; to <= Stopping; to++ {
			s := &Sandbox{id: "x", state: from}
			changed := false
			err := s.transition("try", to, func() { changed = true })
			allowed := drawn[[2]State{from, to}]
			var refused *StateError
			switch {
			case allowed && (err != nil || s.state != to || !changed):
				t.Errorf("%v to %v: %v, now %v", from, to, err, s.state)
			case !allowed && (!errors.As(err, &refused) || refused.State != from || s.state != from || changed):
				t.Errorf("%v to %v: %v, now %v", from, to, err, s.state)
			}
		}
	}
}
