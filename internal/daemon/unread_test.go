package daemon

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/gate"
)

// windowless is an HTTP/2 connection whose client receives the headers of answers, but no data.
type windowless struct {
	t       *testing.T
	frames  *http2.Framer
	headers []hpack.HeaderField // of each request
	next    uint32              // next stream id
}

func dialWindowless(t *testing.T, addr, path string, more ...hpack.HeaderField) *windowless {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, http2.ClientPreface)
	w := &windowless{t: t, frames: http2.NewFramer(conn, conn), next: 1, headers: append([]hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "127.0.0.1"},
		{Name: ":path", Value: path}}, more...)}
	w.frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	w.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	return w
}

// ask sends n requests. It returns how many were answered with headers, and how many were reset
// without an answer.
func (w *windowless) ask(n int) (answered, reset int) {
	w.t.Helper()
	for range n {
		var block bytes.Buffer
		enc := hpack.NewEncoder(&block)
		for _, f := range w.headers {
			enc.WriteField(f)
		}
		w.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: w.next, BlockFragment: block.Bytes(), EndStream: true,
			EndHeaders: true})
		w.next += 2
	}
	for answered+reset < n {
		frame, err := w.frames.ReadFrame()
		if err != nil {
			w.t.Fatalf("after %d answers and %d resets: %v", answered, reset, err)
		}
		switch frame.(type) {
		case *http2.MetaHeadersFrame:
			answered++
		case *http2.RSTStreamFrame:
			reset++
		}
	}
	return answered, reset
}

// Clients that never receive the data of their answers hold a bounded number of answers, even if
// the daemon refuses their requests. Clients without a token take no places of identified clients.
func TestUnreadAnswersAreBounded(t *testing.T) {
	rig := apirig.New(t, apirig.Options{Tokens: []auth.Token{{Name: "a", Scope: auth.Run}, {Name: "b", Scope: auth.Run}}})
	addr := startServer(t, rig.Handler, time.Hour)
	const perConn = 64
	stranger := dialWindowless(t, addr, "/healthz")
	if answered, reset := stranger.ask(maxUnreadPeer + 20); answered != maxUnreadPeer || reset != 20 {
		t.Errorf("without a token: %d answers, %d resets; want %d and 20", answered, reset, maxUnreadPeer)
	}
	bearer := func(name string) hpack.HeaderField {
		return hpack.HeaderField{Name: "authorization", Value: "Bearer " + rig.Tokens[name]}
	}
	share, all := gate.Fair(maxUnread), 0
	for range share/perConn + 1 {
		answered, _ := dialWindowless(t, addr, "/v1/images", bearer("a")).ask(perConn)
		all += answered
	}
	if all != share {
		t.Errorf("with a token: %d answers; want %d", all, share)
	}
	if answered, _ := dialWindowless(t, addr, "/v1/sandboxes", bearer("b")).ask(1); answered != 1 {
		t.Error("another token has no answer")
	}
}

// An answer without a body takes a place too, even if its content type is that of gRPC. A guest
// chooses the types of its answers.
func TestUnreadAnswersOfGRPCAreCounted(t *testing.T) {
	addr := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/grpc" {
			w.Header().Set("Content-Type", "application/grpc")
		} else {
			io.WriteString(w, "data")
		}
	}), time.Hour)
	if answered, _ := dialWindowless(t, addr, "/").ask(maxUnreadPeer); answered != maxUnreadPeer {
		t.Fatalf("%d answers", answered)
	}
	if answered, reset := dialWindowless(t, addr, "/grpc").ask(5); answered != 0 || reset != 5 {
		t.Errorf("without a place: %d answers, %d resets", answered, reset)
	}
}

// The answers that net/http sends by itself have a time limit too.
func TestOwnAnswersOfTheServerHaveATime(t *testing.T) {
	addr := startServer(t, http.NotFoundHandler(), 100*time.Millisecond)
	c := dialWindowless(t, addr, "/", hpack.HeaderField{Name: "connection", Value: "close"})
	for _, reset := c.ask(1); reset == 0; {
		frame, err := c.frames.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := frame.(*http2.RSTStreamFrame); ok {
			reset++
		}
	}
}

// The time limit for the answers that net/http sends by itself does not apply to handlers.
func TestHandlersHaveNoTimeLimit(t *testing.T) {
	w := &dated{ResponseRecorder: httptest.NewRecorder(), until: time.Now()}
	timed(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if !w.until.IsZero() {
			t.Error("the handler has a time limit")
		}
	}), time.Hour, newUnread()).ServeHTTP(w, get(t, "http://x"))
}

// dated records the time limit of an answer.
type dated struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (d *dated) SetWriteDeadline(at time.Time) error {
	d.until = at
	return nil
}
