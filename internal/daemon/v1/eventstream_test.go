package v1

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/event"
)

// seen is the answer to a client. It counts the writes.
type seen struct {
	header http.Header

	mu      sync.Mutex
	text    bytes.Buffer
	writes  []int // bytes of each write
	flushes int
}

func (s *seen) Header() http.Header { return s.header }
func (s *seen) WriteHeader(int)     {}

func (s *seen) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushes++
}

func (s *seen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, len(p))
	return s.text.Write(p)
}

// sandboxesLocked returns the sandboxes of the events that the client has received.
func (s *seen) sandboxesLocked() (list []string) {
	for line := range strings.Lines(s.text.String()) {
		if _, rest, ok := strings.Cut(line, `"sandbox_id":"`); ok {
			id, _, _ := strings.Cut(rest, `"`)
			list = append(list, id)
		}
	}
	return list
}

// ringEvents are the events of a ring, for a client that may see all of them.
type ringEvents struct {
	*event.Follower
	ring *event.Ring
}

func (r ringEvents) ID(e *event.Event) string { return r.ring.ID(e.Seq) }

// eventText is the text of an event for a client that has not requested records.
func eventText(id string, e *event.Event) (string, error) {
	return face.EventText(id, string(e.Kind), face.EventOf(id, e))
}

// stream starts the stream s, which sends the events of a ring after the given place. Its keepalive
// interval is a minute.
func stream(ctx context.Context, ring *event.Ring, after string, s eventStream) *seen {
	client := &seen{header: http.Header{}}
	if s.text == nil {
		s.text = eventText
	}
	s.events, s.out, s.keepalive = ringEvents{ring.Follow(after), ring}, face.NewSSE(client, time.Minute), time.Minute
	go s.run(ctx)
	synctest.Wait()
	return client
}

// A client is told that it missed events if it resumes at a place that is no longer in the ring, or
// if an event that it should receive has no text.
func TestNoGapIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ring := event.NewRing(4)
		emit(ring, 0, 2, nil)
		place := ring.ID(1)
		emit(ring, 2, 10, nil)
		broken := func(id string, e *event.Event) (string, error) {
			if e.Sandbox == "8" {
				return "", errNone
			}
			return eventText(id, e)
		}
		for name, c := range map[string]struct {
			after  string
			text   func(string, *event.Event) (string, error)
			missed int
		}{
			"beyond the ring":  {place, nil, 1},
			"of another ring":  {"other-3", nil, 1},
			"in the ring":      {ring.ID(6), nil, 0},
			"without a text":   {ring.ID(6), broken, 1},
			"both of them":     {place, broken, 2},
			"from the present": {"", nil, 0},
		} {
			client := stream(ctx, ring, c.after, eventStream{text: c.text})
			client.mu.Lock()
			if got := strings.Count(client.text.String(), "event: "+apiv1.EventMissed+"\n"); got != c.missed {
				t.Errorf("%s: %d times missed, want %d:\n%s", name, got, c.missed, client.text.String())
			}
			client.mu.Unlock()
		}
		cancel()
		synctest.Wait()
	})
}

func emit(ring *event.Ring, from, to int, labels map[string]string) (ids []string) {
	for n := from; n < to; n++ {
		ids = append(ids, fmt.Sprint(n))
		ring.Emit(event.Event{Kind: event.SandboxLabels, Sandbox: fmt.Sprint(n), Labels: labels})
	}
	return ids
}

func checkSeen(t *testing.T, client *seen, sandboxes []string, writes int) {
	t.Helper()
	client.mu.Lock()
	defer client.mu.Unlock()
	if got := client.sandboxesLocked(); !slices.Equal(got, sandboxes) {
		t.Errorf("events of the sandboxes %v, want %v", got, sandboxes)
	}
	if len(client.writes) != writes || client.flushes != writes {
		t.Errorf("%d writes and %d flushes, want %d", len(client.writes), client.flushes, writes)
	}
}

// A stream sends an event as soon as it happens. If several events are ready, it sends them in one
// write.
func TestReadyEventsAreOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ring, began := event.NewRing(1000), time.Now()
		client := stream(ctx, ring, "", eventStream{})
		var want []string
		for n := range 3 {
			want = append(want, emit(ring, n, n+1, nil)...)
			synctest.Wait()
		}
		checkSeen(t, client, want, 1+3) // the first write is the stream's position
		place := ring.ID(3)
		want = emit(ring, 3, 103, nil)
		checkSeen(t, stream(ctx, ring, place, eventStream{}), want, 2)
		if !time.Now().Equal(began) {
			t.Errorf("the events came after %v", time.Since(began))
		}
	})
}

// A stream with large events sends them in several writes, so that its memory is bounded.
func TestWritesOfEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ring := event.NewRing(1000)
		place := ring.ID(0)
		want := emit(ring, 0, 100, map[string]string{"a": strings.Repeat("x", 10<<10)})
		client := stream(ctx, ring, place, eventStream{})
		client.mu.Lock()
		defer client.mu.Unlock()
		if got := client.sandboxesLocked(); !slices.Equal(got, want) {
			t.Errorf("events of the sandboxes %v, want %v", got, want)
		}
		if most := slices.Max(client.writes); most > maxPending+12<<10 {
			t.Errorf("a write has %d bytes", most)
		}
	})
}

// A stream that gathers events makes at most one write in each interval. After a silence it still
// sends an event at once.
func TestEventsAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ring := event.NewRing(1000)
		client := stream(ctx, ring, "", eventStream{gather: 50 * time.Millisecond})
		time.Sleep(time.Second + 5*time.Millisecond)
		want := emit(ring, 0, 1, nil)
		synctest.Wait()
		checkSeen(t, client, want, 2)
		time.Sleep(3 * time.Millisecond) // so that no event coincides with the end of an interval
		for n := 1; n < 100; n++ {       // 100 events a second
			time.Sleep(10 * time.Millisecond)
			want = append(want, emit(ring, n, n+1, nil)...)
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		checkSeen(t, client, want, 2+20)
	})
}

// A stream without wanted events sends its position at the keepalive interval, and nothing else.
func TestSilentStreamsSendTheirPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ring := event.NewRing(1000)
		client := stream(ctx, ring, "", eventStream{filter: eventFilter{sandboxes: []string{"other"}}})
		emit(ring, 0, 10, nil)
		synctest.Wait()
		checkSeen(t, client, nil, 1)
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		checkSeen(t, client, nil, 2)
		client.mu.Lock()
		defer client.mu.Unlock()
		if !strings.HasSuffix(client.text.String(), "\nid: "+ring.ID(10)+"\n\n") {
			t.Errorf("the stream has sent %q", client.text.String())
		}
	})
}
