package v1_test

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

// greedy is an HTTP/2 connection whose client never receives the body of an answer.
type greedy struct {
	t      *testing.T
	frames *http2.Framer
	token  string
	next   uint32 // next stream id
	host   string
}

func newGreedy(t *testing.T, address, token string) *greedy {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	g := &greedy{t: t, frames: http2.NewFramer(conn, conn), token: token, next: 1, host: address}
	g.frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := g.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	return g
}

// get sends a request for a path and returns the status of the answer.
func (g *greedy) get(path string) string {
	g.t.Helper()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", g.host}, {":path", path},
		{"authorization", "Bearer " + g.token}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			g.t.Fatal(err)
		}
	}
	stream := g.next
	g.next += 2
	if err := g.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(),
		EndStream: true, EndHeaders: true}); err != nil {
		g.t.Fatal(err)
	}
	for {
		frame, err := g.frames.ReadFrame()
		if err != nil {
			g.t.Fatal(err)
		}
		if head, ok := frame.(*http2.MetaHeadersFrame); ok && head.StreamID == stream {
			return head.PseudoValue("status")
		}
	}
}

// If a client sends many requests over one HTTP/2 connection and never receives the body of an
// answer, it takes at most its share of the places. Another token is still served. Streams do not
// count.
func TestReadsAreBoundedOverHTTP2(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{Reads: 4, Followers: 8},
		Tokens: []auth.Token{{Name: "a", Scope: auth.Run}, {Name: "b", Scope: auth.Run}}})
	id := fork(t, r, 1)[0].ID
	server := httptest.NewUnstartedServer(r.Handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	address := server.Listener.Addr().String()
	one, other := newGreedy(t, address, r.Tokens["a"]), newGreedy(t, address, r.Tokens["b"])
	t.Cleanup(server.CloseClientConnections)
	for i := range 6 {
		if got := one.get("/v1/events"); got != "200" {
			t.Fatalf("stream of events %d: %s", i, got)
		}
	}
	for _, path := range []string{"", "/network", "/limits"} {
		if got := one.get("/v1/sandboxes/" + id + path); got != "200" {
			t.Fatalf("%q: %s", path, got)
		}
	}
	if got := one.get("/v1/sandboxes/" + id); got != "503" {
		t.Errorf("one more of the same token: %s, want 503", got)
	}
	if got := one.get("/version"); got != "503" {
		t.Errorf("another route with the same token: %s, want 503", got)
	}
	if got := other.get("/v1/sandboxes/" + id); got != "200" {
		t.Errorf("another token: %s", got)
	}
	if got := other.get("/healthz"); got != "200" {
		t.Errorf("without need of a token: %s", got)
	}
	cl, err := client.New(r.URL, r.Tokens["a"])
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.Kill(t.Context(), id); err != nil {
		t.Errorf("a token that may read no more ends its sandbox: %v", err)
	}
}

// Requests that need no token are limited by the client's IP address.
func TestOpenRequestsAreBounded(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{Reads: 3 * 16}})
	server := httptest.NewUnstartedServer(r.Handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.CloseClientConnections)
	one := newGreedy(t, server.Listener.Addr().String(), "")
	for i := range 3 {
		if got := one.get("/healthz"); got != "200" {
			t.Fatalf("request %d: %s", i, got)
		}
	}
	if got := one.get("/readyz"); got != "429" {
		t.Errorf("one more from the same address: %s, want 429", got)
	}
	if _, err := r.Sandboxes(t.Context()); err != nil {
		t.Errorf("a client with a token: %v", err)
	}
}
