package daemon

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/apirig"
)

// A client without a token that asks for /healthz on all connections again and again keeps no other
// client out.
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

// The connection that gives its place is the oldest idle one of the peer that has most of them.
func TestIdlestConnection(t *testing.T) {
	l := newLimited(nil, 4)
	add := func(peer string, requests int) *placed {
		l.last++
		c := &placed{of: l, peer: peer, number: l.last, requests: requests}
		l.open[c] = struct{}{}
		return c
	}
	if l.idlest() != nil {
		t.Error("a connection was found where there is none")
	}
	add("c", 1)
	alone := add("a", 0)
	add("b", 2)
	oldest := add("b", 0)
	youngest := add("b", 0)
	for _, want := range []*placed{oldest, alone, youngest, nil} {
		got := l.idlest()
		if got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
		delete(l.open, got)
	}
}

func TestPeersOfConnections(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[2001:db8::1:2]:80": "2001:db8::/64",
		"[fe80::1%eth0]:80": "fe80::/64", "": "",
	} {
		if got := peerOf(&placed{Conn: fixed(addr)}); got != want {
			t.Errorf("%q: %q, want %q", addr, got, want)
		}
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
	ctx := withConn(t.Context(), tls.Server(&sniffed{Conn: c}, new(tls.Config)))
	if got := ctx.Value(placedKey{}); got != c {
		t.Errorf("%v, want %v", got, c)
	}
}
