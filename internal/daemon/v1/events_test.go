package v1_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
)

var errEnough = errors.New("enough")

// follow collects events until an event has the wanted type, and returns all events.
func follow(t *testing.T, cl *client.Client, req client.EventsRequest, want string) []client.Event {
	t.Helper()
	var got []client.Event
	err := cl.Events(t.Context(), req, func(e client.Event) error {
		if got = append(got, e); e.Type == want {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("events %v, then %v", got, err)
	}
	return got
}

func types(events []client.Event, id string) (list []string) {
	for _, e := range events {
		if e.SandboxID == id || id == "" {
			list = append(list, e.Type)
		}
	}
	return list
}

// A client receives all events in order, and can resume at any position.
func TestEvents(t *testing.T) {
	cl, _, id := forked(t)
	ctx := t.Context()
	other, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []func() error{
		func() error { _, err := cl.Pause(ctx, id); return err },
		func() error { _, err := cl.Resume(ctx, id); return err },
		func() error { _, err := cl.Branch(ctx, id, client.BranchRequest{Tag: "b", Mode: "diff"}); return err },
		func() error { // the parent is persisted in the background
			follow(t, cl, client.EventsRequest{After: "none", Sandboxes: []string{id}}, "snapshot.persisted")
			return nil
		},
		func() error { return cl.Kill(ctx, id) },
		func() error { return cl.Kill(ctx, other.Sandboxes[0].ID) },
		func() error { return cl.DeleteSnapshot(ctx, "a.b", client.DeleteOptions{Force: true}) },
	} {
		if err := op(); err != nil {
			t.Fatal(err)
		}
	}
	// From an unknown position, all stored events are sent.
	all := follow(t, cl, client.EventsRequest{After: "none"}, "snapshot.deleted")
	if got := types(all, ""); got[0] != "missed" || got[1] != "snapshot.created" || all[1].SnapshotTag != "a.b" {
		t.Errorf("all events: %v", got)
	}
	want := []string{"sandbox.created", "sandbox.paused", "sandbox.running", "snapshot.created", "snapshot.persisted",
		"sandbox.deleted"}
	if got := types(all, id); !slices.Equal(got, want) {
		t.Errorf("events of the sandbox: %v, want %v", got, want)
	}
	for _, e := range all[1:] {
		if e.ID == "" || e.Time.IsZero() || e.Type == "sandbox.paused" && (e.Reason != "pause" || e.SnapshotTag != "a.b") {
			t.Errorf("event %+v", e)
		}
	}
	middle := len(all) / 2
	if rest := follow(t, cl, client.EventsRequest{After: all[middle].ID}, "snapshot.deleted"); !reflect.DeepEqual(rest,
		all[middle+1:]) {
		t.Errorf("after event %d of %v: %v", middle, all, rest)
	}
	own := follow(t, cl, client.EventsRequest{After: all[1].ID, Sandboxes: []string{id}}, "sandbox.deleted")
	if len(types(own, id)) != len(own) {
		t.Errorf("events of one sandbox: %+v", own)
	}
}

// The stream sends its position at once, so that a client can resume without a gap if the
// connection breaks early.
func TestEventsFromNowOn(t *testing.T) {
	cl, _, id := forked(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan client.Event)
	ended := make(chan error, 1)
	go func() {
		ended <- cl.Events(ctx, client.EventsRequest{}, func(e client.Event) error { got <- e; return nil })
	}()
	// The test cannot see when the stream has begun, so it repeats a change until an event arrives.
	for told := false; !told; {
		for _, op := range []func(context.Context, string) (client.Sandbox, error){cl.Pause, cl.Resume} {
			if _, err := op(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case e := <-got:
			if told = true; e.SandboxID != id {
				t.Errorf("event %+v", e)
			}
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	for {
		select {
		case <-got:
			continue
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the stream ended with %v", err)
			}
			return
		}
	}
}

func TestEventStreamsAreBounded(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{Followers: 1, Keepalive: time.Millisecond}})
	get := func() *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL+"/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	first := get()
	if _, err := io.CopyN(io.Discard, first.Body, 300); err != nil { // keepalives are sent if there are no events
		t.Error(err)
	}
	if second := get(); second.StatusCode != http.StatusServiceUnavailable || second.Header.Get("Retry-After") == "" {
		t.Errorf("a second follower: %s, %v", second.Status, second.Header)
	}
	first.Body.Close()
	// The place is free as soon as the daemon has noticed the end of the first stream.
	for get().StatusCode != http.StatusOK {
		time.Sleep(5 * time.Millisecond)
	}
}

// If a client requests records, an event contains the record of a new object, as a read of the
// object would return it.
func TestEventsHaveRecords(t *testing.T) {
	cl, _, id := forked(t)
	ctx := t.Context()
	if _, err := cl.Branch(ctx, id, client.BranchRequest{Tag: "b", Mode: "diff"}); err != nil {
		t.Fatal(err)
	}
	follow(t, cl, client.EventsRequest{After: "none", Sandboxes: []string{id}}, "snapshot.persisted")
	sandbox, err := cl.Sandbox(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := cl.Snapshot(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	gone, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.Kill(ctx, gone.Sandboxes[0].ID); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second stream gets the texts that the first has made
		for _, e := range follow(t, cl, client.EventsRequest{After: "none", Records: true}, "sandbox.deleted") {
			box := e.SandboxID == id && e.Type != "snapshot.persisted"
			saved := e.Type == "snapshot.created" && e.SnapshotTag == "b"
			if (e.Sandbox != nil) != box || box && !reflect.DeepEqual(*e.Sandbox, sandbox) {
				t.Errorf("%s of %s: %+v, want %+v", e.Type, e.SandboxID, e.Sandbox, sandbox)
			}
			if saved && (e.Snapshot == nil || !reflect.DeepEqual(*e.Snapshot, snapshot.Snapshot)) {
				t.Errorf("%s of %s: %+v, want %+v", e.Type, e.SnapshotTag, e.Snapshot, snapshot.Snapshot)
			}
		}
	}
	for _, e := range follow(t, cl, client.EventsRequest{After: "none"}, "sandbox.deleted") {
		if e.Sandbox != nil || e.Snapshot != nil {
			t.Errorf("%s has records, without a request for them", e.Type)
		}
	}
}
