package v1

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/pause"
)

// maxID bounds the length, in bytes, of the event id from which a client resumes; see
// event.Ring.ID.
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

// maxGather is the maximum of the query parameter gather_secs.
const maxGather = time.Second

// events streams the events of sandboxes and snapshots. The stream ends when the client leaves,
// when the client receives nothing for the time limit of stalled transfers, or when the daemon
// stops.
func (a *api) events(w http.ResponseWriter, r *http.Request) error {
	labels, err := selectorOf(r)
	if err != nil {
		return err
	}
	gather, err := secsQuery(r, "gather_secs", 0, maxGather)
	if err != nil {
		return err
	}
	records, err := boolQuery(r, "records")
	if err != nil {
		return err
	}
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
	view := a.view(r)
	s := eventStream{events: view.Events(after), text: a.textOf(view, records),
		keepalive: a.Face.Limits.Keepalive, gather: gather,
		out:    face.NewSSE(w, a.Face.Limits.Stall),
		filter: eventFilter{sandboxes: r.URL.Query()["sandbox"], labels: labels}}
	s.run(ctx)
	return nil
}

// maxPending bounds how many bytes of events are sent together. The last of these events may exceed
// the bound.
const maxPending = 32 << 10

// eventStream sends events to a client.
type eventStream struct {
	events    eventSource
	text      func(id string, e *event.Event) (string, error) // returns the text of an event
	filter    eventFilter
	out       *face.SSE
	keepalive time.Duration // interval at which a silent stream sends its position
	gather    time.Duration // time between writes, in which events are gathered; 0: events are sent at once
}

// eventSource is implemented by tenancy.Events.
type eventSource interface {
	Place() string
	ID(of *event.Event) string
	Next(ctx context.Context) (e event.Event, missed bool, err error)
}

// run sends events until ctx ends or the client has left. It sends all events that are ready in one
// write, because a write costs the daemon much more than adding an event.
func (s *eventStream) run(ctx context.Context) {
	ended, end := context.WithCancel(ctx)
	end()
	// Send the present position as an id, so that a client can resume without a gap even if the
	// connection breaks before the first event.
	s.out.AddText(fmt.Sprintf("retry: %d\nid: %s\n\n", sseRetry, s.events.Place()))
	for s.out.Flush() == nil && s.sleep(ctx) {
		wait, stop := context.WithTimeout(ctx, s.keepalive)
		err := s.add(wait)
		stop()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			// The new position is after the events that the filter has excluded.
			s.out.AddText("id: " + s.events.Place() + "\n\n")
		}
		for err == nil && s.out.Pending() < maxPending {
			err = s.add(ended) // returns an error if no event is ready
		}
	}
}

// sleep waits for the time in which events are gathered. It returns false if ctx ends.
func (s *eventStream) sleep(ctx context.Context) bool {
	return s.gather == 0 || pause.For(ctx, s.gather) == nil
}

// add waits for the next event until ctx ends, and adds it to the next write if the client wants
// it. If events were dropped from the ring, or the event has no text, the client is told that it
// missed events.
func (s *eventStream) add(ctx context.Context) error {
	e, missed, err := s.events.Next(ctx)
	if err != nil || !missed && !s.filter.wants(&e) {
		return err
	}
	if !missed {
		if text, failed := s.text(s.events.ID(&e), &e); failed == nil {
			s.out.AddText(text)
			return nil
		}
	}
	place := s.events.Place()
	return s.out.Add(place, apiv1.EventMissed, face.MissedEvent(place))
}
