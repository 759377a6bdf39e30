package daemon

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/plainhttp"
	"github.com/forkd/forkd/internal/host/owner"
)

// A client without a token may ask for /healthz again and again on all connections. Other clients
// are still served.
func TestNobodyHoldsAllConnections(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			rig := apirig.New(t, apirig.Options{})
			addr := "127.0.0.1:0"
			if network == "unix" {
				addr = filepath.Join(t.TempDir(), "s")
			}
			l, err := net.Listen(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			const conns = 8
			go serve(ctx, slog.New(slog.DiscardHandler), rig.Handler, []net.Listener{l}, conns)
			ask := func(c net.Conn) error {
				c.SetDeadline(time.Now().Add(20 * time.Second))
				io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
				}
				return err
			}
			for range 3 * conns {
				c, err := net.Dial(network, l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := ask(c); err != nil {
					t.Fatal(err)
				}
			}
			client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
				DialContext: func(context.Context, string, string) (net.Conn, error) {
					return net.Dial(network, l.Addr().String())
				}}}
			req, _ := http.NewRequest(http.MethodGet, "http://x/version", nil)
			req.Header.Set("Authorization", "Bearer "+apirig.Token)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		})
	}
}

// add adds an open connection of a peer, with a request of each client.
func (l *limited) add(peer string, clients ...string) *placed {
	l.last++
	c := &placed{Conn: fixed(peer), of: l, peer: peer, number: l.last}
	l.open[c] = struct{}{}
	for _, who := range clients {
		c.serving(who)
	}
	return c
}

// The oldest idle connection of the peer with the most idle connections loses its place.
func TestWeakestConnection(t *testing.T) {
	l := newLimited(nil, 40)
	if l.weakestLocked() != nil {
		t.Error("a connection was found where there is none")
	}
	l.add("c", "token:a")
	alone := l.add("a")
	l.add("b", "token:a", "token:b")
	oldest := l.add("b")
	youngest := l.add("b")
	for _, want := range []*placed{oldest, alone, youngest, nil} {
		got := l.weakestLocked()
		if got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
		if got != nil {
			got.Close()
		}
	}
}

// If a client has requests on more than its share of the connections, it loses places to other
// clients, whatever peers its connections come from.
func TestOneClientLeavesConnections(t *testing.T) {
	const most = 8
	for _, who := range []string{"token:a", "", owner.Anyone} {
		l, mine := newLimited(nil, most), []*placed(nil)
		idle := l.add("b")
		for i := range most - 1 {
			mine = append(mine, l.add(strconv.Itoa(i), who))
		}
		if who != "token:a" { // the other names can stand for several clients, so they have no share
			if got := l.weakestLocked(); got != idle {
				t.Errorf("%q: %+v, want the idle connection", who, got)
			}
			continue
		}
		if got := l.weakestLocked(); got != mine[most-2] {
			t.Errorf("%+v, want the client's newest connection", got)
		}
		mine[most-2].Close()
		if got := l.weakestLocked(); got != idle {
			t.Errorf("%+v, want the idle connection: the client is within its share", got)
		}
		for _, c := range mine {
			c.Close()
		}
		if len(l.busy) != 0 || len(l.open) != 1 {
			t.Errorf("%v, %v are left", l.busy, l.open)
		}
	}
}

// A connection is subtracted only once from the count of its client, whether the connection or its
// last request ends first.
func TestBusyConnectionsAreCountedOnce(t *testing.T) {
	l := newLimited(nil, 8)
	c := l.add("a")
	first, second := c.serving("token:a"), c.serving("token:b")
	first()
	if n := l.busy["token:a"]; n != 1 || len(l.busy) != 1 {
		t.Errorf("with a request: %v", l.busy)
	}
	c.Close()
	second()
	c.Close()
	if len(l.busy) != 0 {
		t.Errorf("after the end: %v", l.busy)
	}
}

// One client that has a request on every connection keeps no other client out.
func TestRequestsOfOneClientLeaveConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan string, 9)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		auth.Identified(r.Context(), r.Header.Get("Who"))
		served <- r.Header.Get("Who")
		<-r.Context().Done() // until the client leaves or the connection is closed
	})
	go serve(ctx, slog.New(slog.DiscardHandler), handler, []net.Listener{l}, 8)
	ask := func(who string) net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nWho: "+who+"\r\n\r\n")
		select {
		case got := <-served:
			if got != who {
				t.Errorf("served %s, want %s", got, who)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("a request of %s is not served", who)
		}
		return c
	}
	var last net.Conn
	for range 8 {
		last = ask("token:a")
	}
	ask("token:b")
	last.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := last.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the newest connection of the first client: %v", err)
	}
}

// fixed is a connection with a fixed remote address.
type fixed string

func (f fixed) RemoteAddr() net.Addr           { return f }
func (f fixed) Network() string                { return "tcp" }
func (f fixed) String() string                 { return string(f) }
func (fixed) LocalAddr() net.Addr              { return nil }
func (fixed) Read([]byte) (int, error)         { return 0, io.EOF }
func (fixed) Write([]byte) (int, error)        { return 0, io.EOF }
func (fixed) Close() error                     { return nil }
func (fixed) SetDeadline(time.Time) error      { return nil }
func (fixed) SetReadDeadline(time.Time) error  { return nil }
func (fixed) SetWriteDeadline(time.Time) error { return nil }

// The daemon finds the place of a connection below TLS, so it knows which TLS connections are idle.
func TestPlaceBelowTLS(t *testing.T) {
	c := &placed{Conn: fixed("192.0.2.1:80")}
	conn, err := plainhttp.Redirecting(accepted{c}, new(tls.Config), nil).Accept()
	if err != nil {
		t.Fatal(err)
	}
	ctx := withConn(t.Context(), conn)
	if got := ctx.Value(placedKey{}); got != c {
		t.Errorf("%v, want %v", got, c)
	}
}

// accepted is a listener that accepts only this connection.
type accepted struct{ net.Conn }

func (a accepted) Accept() (net.Conn, error) { return a.Conn, nil }
func (a accepted) Addr() net.Addr            { return a.LocalAddr() }
