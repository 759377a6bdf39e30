package daemon

import (
	"net"
	"sync"
)

// limited accepts at most so many connections at once, as netutil.LimitListener does. Its
// connections keep CloseWrite, which streams to ports of sandboxes pass on.
type limited struct {
	net.Listener
	places chan struct{}
	done   chan struct{}
	once   sync.Once
}

func newLimited(l net.Listener, n int) *limited {
	return &limited{Listener: l, places: make(chan struct{}, n), done: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &placed{Conn: conn, leave: sync.OnceFunc(func() { <-l.places })}, nil
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// placed is a connection that has a place until it is closed.
type placed struct {
	net.Conn
	leave func()
}

// NetConn returns the connection itself.
func (c *placed) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn.
func (c *placed) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite ends what the daemon sends. TCP and unix sockets can do that.
func (c *placed) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
