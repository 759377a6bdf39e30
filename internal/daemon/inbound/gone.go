package inbound

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errGone ends a stream after one side has sent everything and closed its connection. This is not a
// failure.
var errGone = errors.New("the other side has gone")

// endWhenGone calls end() when one side has closed its connection. The end of a side's data does
// not prove that its connection is closed, because the side may only have finished sending. So
// endWhenGone watches the connection after the end of the data. Without this, a stream whose guest
// waits for more data would keep the sandbox in use until the idle timeout. After a client has
// left, endWhenGone waits for Stall before it calls end(), because data of the client may still be
// on its way to the guest.
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

// hangUp waits until a connection is closed. It returns true if the other side closed the
// connection, and false if this side closed it. It examines the socket below wrappers such as TLS.
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
