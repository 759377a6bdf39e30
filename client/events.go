package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	v1 "github.com/forkd/forkd/api/v1"
)

// Event is one thing that happened to a sandbox or a snapshot.
type Event = v1.Event

// EventsRequest selects events.
type EventsRequest struct {
	After     string   // ID of an event: the daemon sends all later events; empty: only new events
	Sandboxes []string // ids; empty: all sandboxes and snapshots
	Labels    []string // NAME=VALUE or NAME; the sandbox must have all of them
	Records   bool     // send the records of Event.Sandbox and Event.Snapshot; older daemons refuse this
	Begun     func()   // called when the daemon has begun to send events; later events are not missed; may be nil
}

// EventMissed is the type of the event that stands for lost events.
const EventMissed = v1.EventMissed

// maxEvent bounds one event, in bytes.
const maxEvent = 1 << 20

// Events calls f with the events of sandboxes and snapshots until ctx ends, f returns an error or
// the connection breaks. It returns the error of f. A caller that passes the ID of the last event
// as After continues without a gap. If the daemon no longer has all events since then, it sends an
// event of type "missed".
func (c *Client) Events(ctx context.Context, req EventsRequest, f func(Event) error) error {
	query := url.Values{"sandbox": req.Sandboxes, "label": req.Labels}
	if req.Records {
		query.Set("records", "true")
	}
	header := http.Header{"Accept": {v1.EventStream}}
	if req.After != "" {
		header.Set("Last-Event-ID", req.After)
	}
	resp, err := c.send(ctx, http.MethodGet, withQuery("/v1/events", query), nil, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if req.Begun != nil {
		req.Begun()
	}
	return readEvents(ctx, "events", resp.Body, func(data []byte) error {
		var e Event
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("events: %w", err)
		}
		return f(e)
	})
}

// readEvents calls f with the data of each server-sent event. The end of the stream is a
// *StreamError, because the daemon never ends such a stream.
func readEvents(ctx context.Context, what string, r io.Reader, f func(data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")) // the daemon writes one such line per event
		if !ok {
			continue
		}
		if err := f(data); err != nil {
			return err
		}
	}
	return broken(ctx, what, 0, errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// withQuery returns a path with its query parameters, if there are any.
func withQuery(path string, query url.Values) string {
	if text := query.Encode(); text != "" {
		return path + "?" + text
	}
	return path
}
