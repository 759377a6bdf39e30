package inbound

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errGone ends a stream of which one side has sent all and reads no more. That is no failure.
var errGone = errors.New("the other side has gone")

// endWhenGone has a stream ended by end when one side has closed its connection. The end of its
// data does not tell: it may only be done sending. So it is watched from then on, for where both
// sides wait, the sandbox would be in use until the stream is idle. What a client has sent that has
// gone may still be on its way.
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

// hangUp waits until the other side of a connection has closed it, and reports true; or until it is
// closed here. Connections of clients are wrapped, by TLS too: what counts is the socket below.
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
