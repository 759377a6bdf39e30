package face

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

type connKey struct{}

// WithConn returns a context for the requests of a connection. WhileConnected finds the connection
// in it.
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

// WhileConnected returns a context that ends when the client of a request closes the connection.
// The context of the request itself ends only if the whole body has been read. Over TCP, the end of
// a connection arrives after all data. So if the client has sent more data than the socket's buffer
// takes, WhileConnected notices the end only when the body is read.
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

// hungUp reports whether the other side has closed the connection, or has at least finished
// sending. It reads no data.
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
