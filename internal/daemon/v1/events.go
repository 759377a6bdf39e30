package v1

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/event"
)

// maxID bounds the event id from which a client resumes, in bytes; see event.Ring.ID.
const maxID = 64

// lastEventID is the header by which a client resumes after a broken connection (HTML standard,
// section 9.2).
const lastEventID = "Last-Event-ID"

// sseRetry is the time before a browser reconnects, in milliseconds.
const sseRetry = 1000

// eventFilter selects the events for a client.
type eventFilter struct {
	sandboxes []string // ids; empty: all
	labels    selector
}

func (f *eventFilter) wants(e *event.Event) bool {
	return (len(f.sandboxes) == 0 || slices.Contains(f.sandboxes, e.Sandbox)) &&
		f.labels.match(e.Labels)
}

// events streams the events of sandboxes and snapshots. It ends when the client leaves, when the
// client receives nothing within the limit for stalled transfers, or when the daemon stops.
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
	// The id where the stream begins, so that a client whose connection breaks before the first
	// event misses none.
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
			err = out.Text("id: " + follower.Place() + "\n\n") // moves past events that the filter excludes
		case missed:
			err = out.Send(follower.Place(), apiv1.EventMissed, apiv1.Event{ID: follower.Place(), Time: time.Now().UTC(),
				Type: apiv1.EventMissed})
		case filter.wants(&e):
			about := eventOf(follower.ID(&e), &e)
			err = out.Send(about.ID, about.Type, about)
		}
		if err != nil {
			return nil // the client has gone
		}
	}
}

func eventOf(id string, e *event.Event) apiv1.Event {
	return apiv1.Event{ID: id, Time: e.Time, Type: string(e.Kind), SandboxID: e.Sandbox,
		SnapshotTag: e.Snapshot,
		Labels:      e.Labels, Reason: e.Reason, Detail: e.Detail}
}
