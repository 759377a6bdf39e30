package stack

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

// Calls returns the system calls of this package and of Go's package net, without the calls of the
// Go runtime. These calls permit outgoing connections, but no socket pairs. The permitted sockets
// are TCP, UDP, ping and rtnetlink sockets. On an rtnetlink socket, a process without capabilities
// can only make queries.
func Calls() []jail.Call {
	calls := jail.Calls(unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKOPT,
		unix.SYS_SETSOCKOPT,
		unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_SHUTDOWN, unix.SYS_READV,
		unix.SYS_WRITEV)
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		// net.Dialer uses both forms
		for _, socket := range [][2]uint64{{unix.SOCK_STREAM, 0}, {unix.SOCK_STREAM, unix.IPPROTO_TCP},
			{unix.SOCK_DGRAM, 0}, {unix.SOCK_DGRAM, unix.IPPROTO_ICMP}} {
			for _, flags := range []uint64{unix.SOCK_CLOEXEC, unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK} {
				calls = append(calls, jail.With(unix.SYS_SOCKET, jail.Is(0, family), jail.Is(1, socket[0]|flags),
					jail.Is(2, socket[1])))
			}
		}
	}
	return append(calls, jail.With(unix.SYS_SOCKET, jail.Is(0, unix.AF_NETLINK),
		jail.Is(1, unix.SOCK_RAW|unix.SOCK_CLOEXEC),
		jail.Is(2, unix.NETLINK_ROUTE)))
}
