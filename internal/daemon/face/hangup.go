package face

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

type connKey struct{}

// WithConn returns the context for a connection's requests, in which WhileConnected finds the connection.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	for {
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = inner.NetConn()
	}
	conn, ok := c.(syscall.Conn)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, connKey{}, conn)
}

// hangUpInterval is how often WhileConnected checks the connection.
const hangUpInterval = time.Second

// WhileConnected returns a context that ends when the client of a request closes the connection. The
// server ends the request's own context then, but only after the whole body was read. Over TCP, the end of a
// connection arrives behind the data: if more of it is on the way than the socket's buffer takes, the end is
// noticed only when the body is read.
func WhileConnected(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	conn, ok := ctx.Value(connKey{}).(syscall.Conn)
	if !ok {
		return ctx, cancel
	}
	go func() {
		tick := time.NewTicker(hangUpInterval)
		defer tick.Stop()
		for !hungUp(conn) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel()
	}()
	return ctx, cancel
}

// hungUp reports whether the other side has closed the connection, or its sending direction. It reads
// nothing.
func hungUp(conn syscall.Conn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(poll, 0)
		gone = err == nil && n > 0
	})
	return gone || err != nil
}
