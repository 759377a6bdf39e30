package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/forkd/forkd/internal/daemon/auth"
)

// limited accepts at most a number of connections at once. When all places are taken, a new
// connection gets the place of an idle one, which is closed. A connection is idle while the daemon
// serves no request of an identified client on it. Among the idle connections, limited closes the
// oldest one of the peer that has the most idle connections. So a client that sends no requests, or
// only requests that need no token, keeps no other client out. If no connection is idle, the new
// connection waits, as with netutil.LimitListener.
//
// Its connections keep the method CloseWrite, which streams to ports of sandboxes use.
type limited struct {
	net.Listener
	most int

	mu     sync.Mutex
	change *sync.Cond // signalled when a connection ends or becomes idle, and at Close
	open   map[*placed]struct{}
	last   uint64 // number of the last connection
	closed bool
}

func newLimited(l net.Listener, n int) *limited {
	m := &limited{Listener: l, most: n, open: map[*placed]struct{}{}}
	m.change = sync.NewCond(&m.mu)
	return m
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &placed{Conn: conn, of: l, peer: peerOf(conn)}
	if !l.admit(c) {
		conn.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

// admit waits until there is a place for a connection, and reports whether the listener is still
// open.
func (l *limited) admit(c *placed) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.open) >= l.most && !l.closed {
		idle := l.idlest()
		if idle == nil {
			l.change.Wait()
			continue
		}
		delete(l.open, idle)
		idle.Conn.Close()
	}
	if l.closed {
		return false
	}
	l.last++
	c.number = l.last
	l.open[c] = struct{}{}
	return true
}

// idlest returns the connection to close for another one, or nil. The caller holds mu.
func (l *limited) idlest() (found *placed) {
	idle := map[string]int{} // connections of each peer
	for c := range l.open {
		if c.requests == 0 {
			idle[c.peer]++
		}
	}
	for c := range l.open {
		if c.requests == 0 && (found == nil ||
			cmp.Or(cmp.Compare(idle[c.peer], idle[found.peer]), cmp.Compare(found.number, c.number)) > 0) {
			found = c
		}
	}
	return found
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.change.Broadcast()
	return l.Listener.Close()
}

// placed is a connection that occupies a place until it is closed.
type placed struct {
	net.Conn
	of       *limited
	peer     string
	number   uint64 // in the order of arrival
	requests int    // of identified clients, that are being served; guarded by of.mu
}

// peerOf names the other side of a connection: the user of a unix socket, the address of IPv4, or
// the network of IPv6: a host usually has a /64 of its own.
func peerOf(conn net.Conn) string {
	if peer, ok := auth.PeerFrom(auth.WithPeer(context.Background(), conn)); ok {
		return fmt.Sprint("uid:", peer.UID)
	}
	addr, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return ""
	}
	ip := addr.Addr().Unmap()
	if ip.Is6() {
		if network, err := ip.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return ip.String()
}

// NetConn returns the wrapped connection.
func (c *placed) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn.
func (c *placed) Close() error {
	defer c.of.change.Broadcast()
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// serving counts the requests of identified clients on a connection.
func (c *placed) serving(n int) {
	c.of.mu.Lock()
	c.requests += n
	c.of.mu.Unlock()
	if n < 0 {
		c.of.change.Broadcast()
	}
}

// CloseWrite closes the daemon's direction. TCP and unix sockets support it.
func (c *placed) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

type placedKey struct{}

// withConn returns the context of a connection, with its peer and its place.
func withConn(ctx context.Context, c net.Conn) context.Context {
	ctx = auth.WithPeer(ctx, c)
	for {
		if p, ok := c.(*placed); ok {
			return context.WithValue(ctx, placedKey{}, p)
		}
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return ctx
		}
		c = inner.NetConn()
	}
}

// placing keeps the place of a connection while it serves a request of an identified client.
func placing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := r.Context().Value(placedKey{}).(*placed)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		var counted atomic.Bool
		defer func() {
			if counted.Load() {
				c.serving(-1)
			}
		}()
		next.ServeHTTP(w, r.WithContext(auth.OnIdentified(r.Context(), func() {
			if counted.CompareAndSwap(false, true) {
				c.serving(1)
			}
		})))
	})
}
