package v1

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/event"
)

// maxID bounds the event id from which a client resumes, in bytes; see event.Ring.ID.
const maxID = 64

// lastEventID is the header in which a client sends the id of the last event that it received
// before the connection broke (HTML standard, section 9.2).
const lastEventID = "Last-Event-ID"

// sseRetry is the time before a browser reconnects, in milliseconds.
const sseRetry = 1000

// eventFilter selects the events that a client receives.
type eventFilter struct {
	sandboxes []string // ids; empty: all
	labels    face.Selector
}

func (f *eventFilter) wants(e *event.Event) bool {
	return (len(f.sandboxes) == 0 || slices.Contains(f.sandboxes, e.Sandbox)) &&
		f.labels.Match(e.Labels)
}

// events streams the events of sandboxes and snapshots. The stream ends when the client leaves,
// when it receives nothing for the time limit of stalled transfers, or when the daemon stops.
func (a *api) events(w http.ResponseWriter, r *http.Request) error {
	labels, err := selectorOf(r)
	if err != nil {
		return err
	}
	filter := eventFilter{sandboxes: r.URL.Query()["sandbox"], labels: labels}
	after := r.Header.Get(lastEventID)
	if q := r.URL.Query().Get("after"); q != "" {
		after = q
	}
	if len(after) > maxID {
		return face.BadRequest("%s: longer than %d bytes: send the id of an event", lastEventID, maxID)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.Face.Stopping, cancel)()
	follower := a.view(r).Events(after)
	out := face.NewSSE(w, a.Face.Limits.Stall)
	// Send the present position as an id, so that a client can resume without a gap even if the
	// connection breaks before the first event.
	if out.Text(fmt.Sprintf("retry: %d\nid: %s\n\n", sseRetry, follower.Place())) != nil {
		return nil
	}
	for {
		wait, stop := context.WithTimeout(ctx, a.Face.Limits.Keepalive)
		e, missed, err := follower.Next(wait)
		stop()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, context.DeadlineExceeded):
			// The new position is after the events that the filter has excluded.
			err = out.Text("id: " + follower.Place() + "\n\n")
		case missed:
			err = out.Send(follower.Place(), apiv1.EventMissed, face.MissedEvent(follower.Place()))
		case filter.wants(&e):
			about := face.EventOf(follower.ID(&e), &e)
			err = out.Send(about.ID, about.Type, about)
		}
		if err != nil {
			return nil // the client has left
		}
	}
}
