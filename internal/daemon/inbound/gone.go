package inbound

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errGone ends a stream after one side has sent everything and closed its connection. It is not a
// failure.
var errGone = errors.New("the other side has gone")

// endWhenGone ends a stream by end when one side has closed its connection. The end of the side's
// data does not prove that the connection is closed, because the side may only have finished
// sending. So the connection is watched from then on. Otherwise, when both sides wait, the sandbox
// would be in use until the idle timeout. Data of a client that has left may still be on its way.
func (p *Proxy) endWhenGone(ctx context.Context, client *clientConn, guest *guestConn, end func(error)) {
	client.sent = func() {
		if hangUp(guest.PortConn) {
			end(errGone)
		}
	}
	guest.sent = func() {
		if hangUp(client.Conn) {
			time.AfterFunc(p.Stall, func() { end(errGone) })
		}
	}
	context.AfterFunc(ctx, func() { guest.Close(); client.Close() })
}

// hangUp waits until the other side closes a connection, and then returns true. It returns false
// when the connection is closed on this side. It looks at the socket below the wrappers of a
// client's connection, such as TLS.
func hangUp(conn net.Conn) bool {
	for {
		wrapped, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = wrapped.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	return err == nil && raw.Read(func(fd uintptr) bool {
		poll := [1]unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(poll[:], 0)
		return err == nil && poll[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	}) == nil
}
