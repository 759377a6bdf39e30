package face

import (
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/event"
)

// EventOf describes an event to clients. The id is the place after the event; see event.Ring.ID.
func EventOf(id string, e *event.Event) apiv1.Event {
	return apiv1.Event{ID: id, Time: e.Time, Type: string(e.Kind), SandboxID: e.Sandbox,
		SnapshotTag: e.Snapshot,
		Labels:      e.Labels, Reason: e.Reason, Detail: e.Detail}
}

// MissedEvent tells clients that events before a place were lost.
func MissedEvent(place string) apiv1.Event {
	return apiv1.Event{ID: place, Time: time.Now().UTC(), Type: apiv1.EventMissed}
}
