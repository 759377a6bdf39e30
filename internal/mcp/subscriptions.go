package mcp

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

// Limits of subscriptions and of their notifications.
const (
	maxSubscriptions = 256             // subscriptions of one client
	consolePause     = time.Second     // minimum time between two notifications about a console
	eventsPause      = 2 * time.Second // pause before a stream that was cut off is requested again
)

// follower notifies one client when a resource changes that the client has subscribed to. While
// there are subscriptions, it follows the daemon's events and the consoles.
type follower struct {
	ctx     context.Context
	cl      *client.Client
	updated func(uri string)

	mu     sync.Mutex
	stops  map[string]context.CancelFunc // functions that end the subscriptions, by URI
	events context.CancelFunc            // ends the stream of events; nil if there is no stream
}

func newFollower(ctx context.Context, cl *client.Client) *follower {
	return &follower{ctx: ctx, cl: cl, stops: map[string]context.CancelFunc{}}
}

var errTooManySubscriptions = errors.New("this client has all the subscriptions that it may have: end some first")

// subscribe begins a subscription to a resource that exists. The client is notified of every later
// change.
func (f *follower) subscribe(ctx context.Context, req *sdk.SubscribeRequest) error {
	uri := req.Params.URI
	a, ok := parseURI(uri)
	if !ok || a.kind == oneFile {
		return sdk.ResourceNotFoundError(uri)
	}
	var err error
	switch a.kind {
	case oneSnapshot:
		_, err = f.cl.Snapshot(ctx, a.name)
	case oneSandbox:
		_, err = f.cl.Sandbox(ctx, a.name)
	}
	if err != nil {
		return resourceError(uri, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stops[uri] != nil {
		return nil
	}
	if len(f.stops) >= maxSubscriptions {
		return errTooManySubscriptions
	}
	if a.kind == oneConsole {
		return f.followConsoleLocked(uri, a.name)
	}
	if f.events == nil {
		if err := f.followEventsLocked(); err != nil {
			return resourceError(uri, err)
		}
	}
	f.stops[uri] = func() {}
	return nil
}

// unsubscribe ends a subscription, if it exists.
func (f *follower) unsubscribe(_ context.Context, req *sdk.UnsubscribeRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stop := f.stops[req.Params.URI]; stop != nil {
		stop()
		delete(f.stops, req.Params.URI)
	}
	if f.events != nil && len(f.stops) == 0 {
		f.events()
		f.events = nil
	}
	return nil
}

// followEventsLocked starts to follow the daemon's events. It returns when the stream has begun.
// The caller holds the follower's mu.
func (f *follower) followEventsLocked() error {
	ctx, stop := context.WithCancel(f.ctx)
	begun, once := make(chan error, 1), sync.Once{}
	go func() {
		after := ""
		for first := true; ctx.Err() == nil; first = false {
			err := f.cl.Events(ctx, client.EventsRequest{After: after, Begun: func() {
				once.Do(func() { begun <- nil })
				if !first && after == "" { // the first stream ended before it gave a position, so events may be missing
					f.tell(client.Event{Type: client.EventMissed})
				}
			}}, func(e client.Event) error {
				after = e.ID
				f.tell(e)
				return nil
			})
			once.Do(func() { begun <- err })
			select {
			case <-ctx.Done():
			case <-time.After(eventsPause):
			}
		}
	}()
	if err := <-begun; err != nil {
		stop()
		return err
	}
	f.events = stop
	return nil
}

// tell sends the client a notification for each resource that has changed according to an event. If
// the event says that events were missed, it sends a notification for each subscribed resource.
func (f *follower) tell(e client.Event) {
	if e.Type == client.EventMissed {
		f.mu.Lock()
		var all []string
		for uri := range f.stops {
			all = append(all, uri)
		}
		f.mu.Unlock()
		for _, uri := range all {
			f.updated(uri)
		}
		return
	}
	for uri, named := range map[string]bool{
		sandboxesURI: e.SandboxID != "", sandboxURI(e.SandboxID): e.SandboxID != "",
		snapshotsURI: e.SnapshotTag != "", snapshotURI(e.SnapshotTag): e.SnapshotTag != "",
	} {
		if named {
			f.updated(uri)
		}
	}
}

// followConsoleLocked starts to follow the console of a sandbox. The caller holds the follower's
// mu.
func (f *follower) followConsoleLocked(uri, id string) error {
	ctx, stop := context.WithCancel(f.ctx)
	logs, err := f.cl.Logs(ctx, id, client.LogsRequest{Follow: true, Tail: "0"})
	if err != nil {
		stop()
		return resourceError(uri, err)
	}
	f.stops[uri] = stop
	go func() {
		defer logs.Close()
		for buf := make([]byte, 32<<10); ; {
			n, err := logs.Read(buf)
			if n > 0 {
				f.updated(uri)
				select {
				case <-ctx.Done():
				case <-time.After(consolePause):
				}
			}
			if err != nil {
				if errors.Is(err, io.EOF) { // the sandbox has ended
					f.updated(uri)
				}
				return
			}
		}
	}()
	return nil
}
