package effect

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// serve runs a server that answers "passed" to the requests that pass.
func serve(t *testing.T, answer string) (*List, *httptest.Server) {
	t.Helper()
	hold, err := netproto.ParseHold([]string{"a.b"}, answer)
	if err != nil {
		t.Fatal(err)
	}
	l := New(hold, func(_, _ int64) bool { return true }, func(int64) {})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.Pass(w, r, "http://a.b"+r.RequestURI, func() bool { return true }) {
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, "passed")
		}
	}))
	t.Cleanup(s.Close)
	return l, s
}

func outcomes(l *List) (all string) {
	for _, e := range l.Effects().List {
		all += e.Outcome + " "
	}
	return all
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// A request does not wait forever.
func TestWaitsExpire(t *testing.T) {
	l, s := serve(t, "wait")
	l.wait = time.Millisecond
	resp, err := http.Post(s.URL, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusGatewayTimeout || resp.Header.Get(Header) != netproto.OutcomeExpired ||
		outcomes(l) != "expired " {
		t.Errorf("%d %v, %s", resp.StatusCode, resp.Header, outcomes(l))
	}
	l.Set(netproto.Hold{})
	if outcomes(l) != "expired " {
		t.Error("a release changes what has expired")
	}
}

// Only a few requests can wait at the same time. Further requests are refused at once. A request
// whose client has given up frees its place.
func TestFewRequestsWait(t *testing.T) {
	l, s := serve(t, "wait")
	var conns []net.Conn
	for range maxWaiting {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "DELETE / HTTP/1.1\r\nHost: a.b\r\n\r\n")
		conns = append(conns, c)
	}
	waitFor(t, "all wait", func() bool { return strings.Count(outcomes(l), "waiting") == maxWaiting })
	remove := func() int {
		req, err := http.NewRequest(http.MethodDelete, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	if status := remove(); status != http.StatusServiceUnavailable || l.Effects().Missed != 1 {
		t.Errorf("one more: %d, %+v", status, l.Effects().Missed)
	}
	_ = conns[0].Close()
	waitFor(t, "one has given up", func() bool { return strings.Contains(outcomes(l), "given_up") })
	done := make(chan int)
	go func() { done <- remove() }()
	waitFor(t, "another waits", func() bool { return strings.Count(outcomes(l), "waiting") == maxWaiting })
	l.Set(netproto.Hold{})
	if status := <-done; status != http.StatusOK {
		t.Errorf("after the release: %d", status)
	}
}

// A request whose body is not complete is neither recorded as done nor answered with success.
func TestIncompleteBodies(t *testing.T) {
	l, s := serve(t, "record")
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a.b\r\nContent-Length: %d\r\n\r\n", 3*netproto.MaxEffectBody)
	_, _ = io.WriteString(c, strings.Repeat("x", 2*netproto.MaxEffectBody))
	_ = c.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(c)
	if err != nil || strings.HasPrefix(string(answer), "HTTP/1.1 2") || outcomes(l) != "given_up " {
		t.Errorf("%q %v, %s", answer, err, outcomes(l))
	}
}
