package daemon

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// patience is how long a test waits for an event that should occur at once.
const patience = 30 * time.Second

// startServer starts a server on loopback with a time limit for answers.
func startServer(t *testing.T, h http.Handler, answer time.Duration) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(h, slog.New(slog.DiscardHandler), time.Hour, answer)
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// clientOf returns a transport for HTTP/1.1 or HTTP/2, with small receive buffers.
func clientOf(t *testing.T, http2 bool) *http.Transport {
	tr := &http.Transport{Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 16 << 10, MaxReceiveBufferPerConnection: 64 << 10}}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// A client that sends requests and reads nothing cannot hold the handler or the connection for
// ever. This is true for every protocol, even if the handler sets no deadlines.
func TestAnswersHaveATime(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			addr := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				p := make([]byte, 1<<20)
				for range 64 { // more than socket buffers hold
					if _, err := w.Write(p); err != nil {
						ended <- err
						return
					}
				}
				ended <- nil
			}), 100*time.Millisecond)
			resp, err := clientOf(t, http2).RoundTrip(get(t, "http://"+addr))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("all was written to a client that reads nothing")
				}
			case <-time.After(patience):
				t.Error("the handler still writes")
			}
		})
	}
}

// A stream that sets its own deadlines may last longer than the time limit for answers.
func TestStreamsHaveTheirOwnTime(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			read := make(chan bool)
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rc := http.NewResponseController(w)
				for range 3 {
					rc.SetWriteDeadline(time.Now().Add(time.Hour))
					if _, err := io.WriteString(w, "line\n"); err != nil {
						t.Error(err)
					}
					if err := rc.Flush(); err != nil {
						t.Error(err)
					}
					select {
					case <-read:
					case <-r.Context().Done():
						return
					}
				}
			})
			addr := startServer(t, timed(handler, time.Nanosecond, newUnread()), time.Hour)
			resp, err := clientOf(t, http2).RoundTrip(get(t, "http://"+addr))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			for range 3 {
				line := make([]byte, 5)
				if _, err := io.ReadFull(resp.Body, line); err != nil {
					t.Fatal(err)
				}
				read <- true
			}
		})
	}
}

// The server closes the connection of an HTTP/2 client that opens all windows and never reads its
// socket. The server's writes time out. Without this timeout, a blocked write would also block the
// closing of the idle connection.
func TestHTTP2SocketThatIsNotRead(t *testing.T) {
	closed := make(chan bool)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p := make([]byte, 1<<20)
		for range 64 {
			if _, err := w.Write(p); err != nil {
				return
			}
		}
	}), slog.New(slog.DiscardHandler), 100*time.Millisecond, 100*time.Millisecond)
	s.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			close(closed)
		}
	}
	go s.Serve(l)
	defer s.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+
		"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff"+ // SETTINGS: windows of 2 GiB
		"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\x00\x00\x00"+ // WINDOW_UPDATE of the connection
		"\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01x") // HEADERS: GET / of the authority x
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("the connection is still open")
	}
}

// Clients cannot fill the log with their requests, but panics of handlers are logged.
func TestServerLog(t *testing.T) {
	var out bytes.Buffer
	l := errorLog(slog.New(slog.NewTextHandler(&out, nil)))
	l.Printf("http: TLS handshake error from %s: EOF", "192.0.2.1:5")
	if out.Len() > 0 {
		t.Errorf("a broken handshake is in the log: %s", out.String())
	}
	l.Printf("http: panic serving %s: oh", "192.0.2.1:5")
	if !strings.Contains(out.String(), "level=ERROR") || !strings.Contains(out.String(), "oh") {
		t.Errorf("a panic is not in the log: %q", out.String())
	}
}

func get(t *testing.T, url string) *http.Request {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
