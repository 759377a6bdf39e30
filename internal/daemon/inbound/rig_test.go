package inbound

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
)

const token = "0123456789abcdef"

// rig is a proxy in front of a server that stands in for a guest.
type rig struct {
	*httptest.Server
	ended chan error // result of HTTP or TCP
}

// limit is the time limit for events that must occur.
const limit = time.Minute

// start serves a proxy to a listener that stands in for a guest.
func start(t *testing.T, guest net.Listener, cfg Config, route Route) *rig {
	t.Helper()
	cfg.IsToken = func(s string) bool { return s == token }
	if cfg.Idle == 0 {
		cfg.Idle = limit
	}
	if cfg.Stall == 0 {
		cfg.Stall = limit
	}
	p := New(cfg)
	dial := func(ctx context.Context) (agentclient.PortConn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, guest.Addr().Network(), guest.Addr().String())
		if err != nil {
			return nil, err
		}
		return conn.(agentclient.PortConn), nil
	}
	route.ID, route.Port = id, 80
	r := &rig{ended: make(chan error, 100)}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		own := route
		own.Path = strings.TrimPrefix(req.URL.EscapedPath(), own.Prefix)
		carry := func() (bool, error) { return p.HTTP(w, req, own, dial) }
		if req.URL.Path == "/tcp" {
			carry = func() (bool, error) { return p.TCP(w, req, dial) }
		}
		answered, err := carry()
		r.ended <- err
		switch {
		case err == nil:
		case answered:
			panic(http.ErrAbortHandler)
		default:
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}))
	r.Config.Protocols = new(http.Protocols)
	r.Config.Protocols.SetHTTP1(true)
	r.Config.Protocols.SetUnencryptedHTTP2(true)
	r.Listener = wrapping{r.Listener}
	r.Start()
	t.Cleanup(r.Close)
	return r
}

// wrapping is a listener that wraps its connections, like the daemon's listener.
type wrapping struct{ net.Listener }

func (l wrapping) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return wrapped{conn}, err
}

type wrapped struct{ net.Conn }

func (c wrapped) NetConn() net.Conn { return c.Conn }

func (c wrapped) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// listen returns a listener whose connections f serves, each in its own goroutine. f may violate
// any protocol.
func listen(t *testing.T, f func(*net.TCPConn)) net.Listener {
	return listenOn(t, "tcp", "127.0.0.1:0", f)
}

// listenUnix is like listen, but uses unix sockets. They behave like connections of real guests:
// the other side can distinguish the end of the connection from the end of its data.
func listenUnix(t *testing.T, f func(*net.UnixConn)) net.Listener {
	return listenOn(t, "unix", t.TempDir()+"/s", f)
}

func listenOn[C net.Conn](t *testing.T, network, address string, f func(C)) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); f(conn.(C)) }()
		}
	}()
	return l
}

// serve returns the listener of an HTTP server.
func serve(t *testing.T, h http.HandlerFunc) net.Listener {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener
}

// says() returns the handler of a guest that writes a text to every connection and then reads until
// the end of the client's data.
func says(text string) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		bufio.NewReader(conn).ReadString('\n')
		io.WriteString(conn, text)
		io.Copy(io.Discard, conn)
	}
}

// raw sends a request unchanged and returns the connection.
func (r *rig) raw(t *testing.T, request string) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn), bufio.NewReader(conn)
}

// end returns the error with which a stream ended.
func (r *rig) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(limit):
		t.Fatal("the stream does not end")
		return nil
	}
}
