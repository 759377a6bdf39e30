package daemon

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"sync"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/owner"
)

// limited is a listener that bounds the number of connections that are open at the same time. When
// all places are taken, an idle connection is closed, and the new connection gets its place. A
// connection is idle while the daemon serves no request of an identified client on it. Among the
// idle connections, limited closes the oldest one of the peer that has the most idle connections.
// So a client that sends no requests, or only requests that need no token, keeps no other client
// out.
//
// An identified client may have requests on three quarters of the connections. If the client has
// requests on more connections, its connections can be closed like idle ones, the newest first. So
// no client keeps another client out. If no connection can be closed, the new connection waits, as
// with netutil.LimitListener.
//
// The accepted connections have the method CloseWrite, which streams to ports of sandboxes use.
type limited struct {
	net.Listener
	most int

	mu     sync.Mutex
	change *sync.Cond // signalled when a connection ends or becomes idle, and at Close
	open   map[*placed]struct{}
	busy   map[string]int // number of connections that are not idle, by placed.who
	last   uint64         // number of the newest connection; see placed.number
	closed bool
}

func newLimited(l net.Listener, n int) *limited {
	m := &limited{Listener: l, most: n, open: map[*placed]struct{}{}, busy: map[string]int{}}
	m.change = sync.NewCond(&m.mu)
	return m
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	peer := auth.PeerName(auth.WithPeer(context.Background(), conn), conn.RemoteAddr().String())
	c := &placed{Conn: conn, of: l, peer: peer}
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
		weakest := l.weakestLocked()
		if weakest == nil {
			l.change.Wait()
			continue
		}
		l.removeLocked(weakest)
		weakest.Conn.Close()
	}
	if l.closed {
		return false
	}
	l.last++
	c.number = l.last
	l.open[c] = struct{}{}
	return true
}

// weakestLocked returns the connection to close in favor of a new connection, or nil.
func (l *limited) weakestLocked() (found *placed) {
	sizes := map[group]int{}
	for c := range l.open {
		if g, ok := l.groupLocked(c); ok {
			sizes[g]++
		}
	}
	var of group
	for c := range l.open {
		g, ok := l.groupLocked(c)
		if ok && (found == nil || cmp.Or(cmp.Compare(sizes[g], sizes[of]), c.weaker(found)) > 0) {
			found, of = c, g
		}
	}
	return found
}

// group identifies connections that are counted together when a connection is to be closed: the
// idle connections of a peer, or the connections with requests of a client.
type group struct{ peer, client string }

// groupLocked reports whether a connection may be closed for a new one, and returns its group. A
// connection with requests may be closed if its client is above its share.
func (l *limited) groupLocked(c *placed) (g group, ok bool) {
	if c.requests == 0 {
		return group{peer: c.peer}, true
	}
	most := owner.FairShare(c.who, l.most).Most
	return group{client: c.who}, most > 0 && l.busy[c.who] > most
}

// removeLocked takes away the place of a connection, if the connection still has a place.
func (l *limited) removeLocked(c *placed) {
	if c.requests > 0 {
		l.recountLocked(c, -1)
	}
	delete(l.open, c)
}

// recountLocked adds n to the number of busy connections of c's client: those with requests. If c has
// lost its place, recountLocked does nothing.
func (l *limited) recountLocked(c *placed, n int) {
	if _, ok := l.open[c]; !ok {
		return
	}
	if l.busy[c.who] += n; l.busy[c.who] == 0 {
		delete(l.busy, c.who)
	}
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.change.Broadcast()
	return l.Listener.Close()
}

// placed is a connection of a limited listener. It takes a place until it is closed.
type placed struct {
	net.Conn
	of     *limited
	peer   string
	number uint64 // number in the order of arrival

	// Guarded by placed.of.mu:
	requests int    // number of requests of identified clients that are being served
	who      string // client of the first of these requests, as in auth.Identified
}

// weaker() compares two connections of equally large groups. It returns a positive number if c is
// to be closed before the other connection. An idle connection is closed before one with requests.
// Of two idle connections, the older is closed first. Of two connections with requests, the newer
// is closed first.
func (c *placed) weaker(than *placed) int {
	switch {
	case c.requests == 0 && than.requests == 0:
		return cmp.Compare(than.number, c.number)
	case c.requests == 0:
		return 1
	case than.requests == 0:
		return -1
	}
	return cmp.Compare(c.number, than.number)
}

// NetConn returns the wrapped connection.
func (c *placed) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn.
func (c *placed) Close() error {
	defer c.of.change.Broadcast()
	c.of.mu.Lock()
	c.of.removeLocked(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// serving() counts a request of an identified client on the connection, until the returned function
// is called.
func (c *placed) serving(who string) (ended func()) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.requests++; c.requests == 1 {
		c.who = who
		c.of.recountLocked(c, 1)
	}
	return func() {
		defer c.of.change.Broadcast()
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		if c.requests--; c.requests == 0 {
			c.of.recountLocked(c, -1)
		}
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

// withConn returns the context of a connection, with the connection, its peer and its place.
func withConn(ctx context.Context, c net.Conn) context.Context {
	ctx = face.WithConn(auth.WithPeer(ctx, c), c)
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

// placing() marks a connection as busy while a request of an identified client is served on it.
func placing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := r.Context().Value(placedKey{}).(*placed)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		var once sync.Once
		ended := func() {}
		defer func() {
			once.Do(func() {}) // waits for a call in progress, and prevents later ones
			ended()
		}()
		next.ServeHTTP(w, r.WithContext(auth.OnIdentified(r.Context(), func(who string, _ bool) {
			once.Do(func() { ended = c.serving(who) })
		})))
	})
}
