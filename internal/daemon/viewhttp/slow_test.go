package viewhttp_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
)

// unbuffered is a connection without a buffer for bytes that the browser does not read.
type unbuffered struct{ net.Conn }

func (unbuffered) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// stream is a stream of events, over an unbuffered connection of its own.
type stream struct {
	t      *testing.T
	conn   net.Conn
	lines  *bufio.Reader
	served chan struct{} // closed when the daemon has ended the answer
	place  string        // id after the last complete event
}

// follow begins a stream of events after a place. If the place is empty, the stream begins now.
func (b *browser) follow(rig *apirig.Rig, after string) *stream {
	b.t.Helper()
	ours, theirs := net.Pipe()
	s := &stream{t: b.t, conn: ours, lines: bufio.NewReader(ours), served: make(chan struct{})}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(s.served)
		rig.Handler.ServeHTTP(w, r)
	})}
	b.t.Cleanup(func() { _ = ours.Close(); _ = server.Close() })
	go func() { _ = server.Serve(apirig.OneConn(unbuffered{theirs})) }()
	_ = ours.SetDeadline(time.Now().Add(time.Minute)) // cannot fail for a pipe
	if _, err := fmt.Fprintf(ours, "GET %sv1/events?after=%s HTTP/1.1\r\nHost: %s\r\nCookie: %s=%s\r\n"+
		"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Dest: empty\r\n\r\n", b.cookie.Path, after,
		strings.TrimPrefix(b.url, "http://"), b.cookie.Name, b.cookie.Value); err != nil {
		b.t.Fatal(err)
	}
	resp, err := http.ReadResponse(s.lines, nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.t.Fatal(resp, err)
	}
	s.lines = bufio.NewReader(resp.Body)
	return s
}

// next returns the next event. It returns false if the stream ends.
func (s *stream) next() (e client.Event, ok bool) {
	s.t.Helper()
	for id, whole := "", false; ; {
		line, err := s.lines.ReadString('\n')
		switch {
		case err != nil:
			return e, false
		case strings.HasPrefix(line, "id: "):
			id = strings.TrimSpace(line[len("id: "):])
		case strings.HasPrefix(line, "data: "):
			if err := json.Unmarshal([]byte(line[len("data: "):]), &e); err != nil {
				s.t.Errorf("%q: %v", line, err)
				return e, false
			}
			whole = true
		case line == "\n" && id != "":
			if s.place = id; whole {
				return e, true
			}
		}
	}
}

// label changes a label of a sandbox. This change is an event.
func label(t *testing.T, rig *apirig.Rig, id, value string) {
	t.Helper()
	if _, err := rig.ChangeLabels(t.Context(), id, map[string]*string{"turn": &value}); err != nil {
		t.Fatal(err)
	}
}

const stall = 2 * time.Second

// startFollowed starts a rig with one sandbox, and a browser with a session.
func startFollowed(t *testing.T) (*apirig.Rig, *browser, string) {
	t.Helper()
	rig := apirig.Start(t, apirig.Options{Agent: apirig.SelfAgent, Limits: face.Limits{Stall: stall}})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: rig.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, url: rig.URL, origin: rig.URL}
	b.logIn(apirig.Token)
	return rig, b, f.Sandboxes[0].ID
}

// A page that stops reading its events is dropped after the time limit of stalled transfers. It delays
// no other page, and learns from its next stream that it missed events.
func TestAPageThatDoesNotRead(t *testing.T) {
	rig, b, id := startFollowed(t)
	slow, other := b.follow(rig, ""), b.follow(rig, "")
	label(t, rig, id, "first")
	for name, s := range map[string]*stream{"slow": slow, "other": other} {
		if e, ok := s.next(); !ok || e.Labels["turn"] != "first" {
			t.Fatalf("the %s page: %+v, %v", name, e, ok)
		}
	}
	const many = 100 // more than the rig's daemon keeps
	turns := make(chan string, many)
	go func() {
		for e, ok := other.next(); ok; e, ok = other.next() {
			turns <- e.Labels["turn"]
		}
		close(turns)
	}()
	for n := range many {
		label(t, rig, id, fmt.Sprint(n))
		if got := <-turns; got != fmt.Sprint(n) {
			t.Fatalf("event %d of the other page: turn %q", n, got)
		}
	}
	select {
	case <-slow.served:
	case <-time.After(time.Minute):
		t.Fatal("the daemon keeps a stream whose page does not read")
	}
	select {
	case <-other.served:
		t.Error("the daemon has dropped a page that reads")
	default:
	}
	again := b.follow(rig, slow.place)
	if e, ok := again.next(); !ok || e.Type != client.EventMissed {
		t.Errorf("the next stream of the slow page begins with %+v, %v", e, ok)
	}
	list := b.wants(http.StatusOK, "GET", b.cookie.Path+"v1/sandboxes", "", nil)
	if !strings.Contains(list, fmt.Sprintf(`"turn":"%d"`, many-1)) {
		t.Errorf("the list is %s", list)
	}
	label(t, rig, id, "after")
	kept := 0 // events that the daemon still has
	for e, ok := again.next(); e.Labels["turn"] != "after"; e, ok = again.next() {
		if kept++; !ok || kept >= many {
			t.Fatalf("after the list: %d events, then %+v, %v", kept, e, ok)
		}
	}
}

// If a stream is cut, even in the middle of an event, the daemon ends it. The next stream continues
// after the last complete event, so each event arrives exactly once.
func TestStreamsThatAreCut(t *testing.T) {
	rig, b, id := startFollowed(t)
	place, want := "", 0
	for cut := range 20 {
		s := b.follow(rig, place)
		label(t, rig, id, fmt.Sprint(2*cut))
		label(t, rig, id, fmt.Sprint(2*cut+1))
		for range 1 + cut%2 { // sometimes the second event is read only in part
			e, ok := s.next()
			if !ok || e.Labels["turn"] != fmt.Sprint(want) {
				t.Fatalf("cut %d: %+v, %v, want turn %d", cut, e, ok, want)
			}
			want++
		}
		_, _ = io.CopyN(io.Discard, s.lines, int64(cut%3))
		_ = s.conn.Close()
		select {
		case <-s.served:
		case <-time.After(time.Minute):
			t.Fatal("the daemon keeps a stream that was cut")
		}
		place = s.place
	}
	s := b.follow(rig, place)
	for ; want < 40; want++ {
		if e, ok := s.next(); !ok || e.Labels["turn"] != fmt.Sprint(want) {
			t.Fatalf("%+v, %v, want turn %d", e, ok, want)
		}
	}
}
