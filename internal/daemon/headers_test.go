package daemon

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forkd/forkd/internal/daemon/inbound"
)

// A request with too many headers is refused before a handler sees the request. Parsed headers
// would take many times their size in memory for as long as the request lasts.
func TestVeryManyHeaders(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var audited atomic.Int64
	handler := fewHeaders(http.NotFoundHandler(), func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			audited.Add(1)
			h.ServeHTTP(w, r)
		})
	})
	s := newServer(handler, slog.New(slog.DiscardHandler), idleTimeout, answerTimeout)
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	for n, want := range map[int]int{inbound.MaxFields: http.StatusNotFound,
		inbound.MaxFields + 1: http.StatusRequestHeaderFieldsTooLarge} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", strings.Repeat("a:\r\n", n))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%d headers: %+v, %v, want %d", n, resp, err, want)
			continue
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Error(err)
		}
	}
	if n := audited.Load(); n != 1 {
		t.Errorf("%d refusals are in the audit log, not 1", n)
	}
	head := http.Header{"X": {strings.Repeat("x", maxHeaders+8<<10)}}
	at := &url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/"}
	resp, err := http.DefaultTransport.RoundTrip(&http.Request{Method: http.MethodGet, Header: head, URL: at})
	if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of %d bytes: %+v, %v", len(head.Get("X")), resp, err)
	}
}
