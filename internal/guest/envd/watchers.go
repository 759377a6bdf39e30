package envd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"

	"connectrpc.com/connect"

	"github.com/forkd/forkd/internal/proto/envdproto/filesystem"
)

// Bounds on polled watchers.
const (
	maxWatchers = 64
	maxPending  = 10000 // number of events of one watcher that its client has not fetched
)

// watchers holds the watches whose events clients poll.
type watchers struct {
	mu   sync.Mutex
	byID map[string]*watcher
}

type watcher struct {
	watch *watch

	mu      sync.Mutex
	pending []*filesystem.FilesystemEvent
	err     error
}

func newWatchers() *watchers { return &watchers{byID: map[string]*watcher{}} }

// collect stores a watch's events until the client fetches them. When maxPending events are stored,
// it drops further events, and w.take then returns an error.
func (w *watcher) collect() {
	for ev := range w.watch.events {
		w.mu.Lock()
		if len(w.pending) < maxPending {
			w.pending = append(w.pending, ev)
		} else if w.err == nil {
			w.err = connect.NewError(connect.CodeDataLoss, fmt.Errorf("more than %d events were not fetched", maxPending))
		}
		w.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.watch.err
	}
}

// take returns the events since the previous call. It returns an error if the watch has lost
// events.
func (w *watcher) take() ([]*filesystem.FilesystemEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.pending
	w.pending = nil
	if len(out) > 0 {
		return out, nil
	}
	return nil, w.err
}

// CreateWatcher starts a watch whose events the client polls.
func (fsv *filesystemService) CreateWatcher(_ context.Context,
	req *connect.Request[filesystem.CreateWatcherRequest]) (*connect.Response[filesystem.CreateWatcherResponse], error) {
	u, err := fsv.s.rpcUser(req.Header())
	if err != nil {
		return nil, err
	}
	fsv.watchers.mu.Lock()
	defer fsv.watchers.mu.Unlock()
	if len(fsv.watchers.byID) >= maxWatchers {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("there are %d watchers; remove one",
			maxWatchers))
	}
	started, err := newWatch(u, req.Msg)
	if err != nil {
		return nil, err
	}
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	id := hex.EncodeToString(b[:])
	w := &watcher{watch: started}
	fsv.watchers.byID[id] = w
	go w.collect()
	return connect.NewResponse(&filesystem.CreateWatcherResponse{WatcherId: id}), nil
}

func unknownWatcher(id string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher %q does not exist", id))
}

// GetWatcherEvents returns the events since the previous call.
func (fsv *filesystemService) GetWatcherEvents(_ context.Context,
	req *connect.Request[filesystem.GetWatcherEventsRequest]) (*connect.Response[filesystem.GetWatcherEventsResponse],
	error) {
	fsv.watchers.mu.Lock()
	w := fsv.watchers.byID[req.Msg.GetWatcherId()]
	fsv.watchers.mu.Unlock()
	if w == nil {
		return nil, unknownWatcher(req.Msg.GetWatcherId())
	}
	events, err := w.take()
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&filesystem.GetWatcherEventsResponse{Events: events}), nil
}

// RemoveWatcher ends a watch.
func (fsv *filesystemService) RemoveWatcher(_ context.Context,
	req *connect.Request[filesystem.RemoveWatcherRequest]) (*connect.Response[filesystem.RemoveWatcherResponse], error) {
	fsv.watchers.mu.Lock()
	w := fsv.watchers.byID[req.Msg.GetWatcherId()]
	delete(fsv.watchers.byID, req.Msg.GetWatcherId())
	fsv.watchers.mu.Unlock()
	if w == nil {
		return nil, unknownWatcher(req.Msg.GetWatcherId())
	}
	w.watch.close()
	return connect.NewResponse(&filesystem.RemoveWatcherResponse{}), nil
}
