package vsock

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

// Calls returns the system calls of this package, without the calls of the Go runtime. These system
// calls permit creating pairs of sockets and accepting connections, but not connecting a socket to
// an address. The pairs must be stream sockets, because a datagram socket could send to any
// address.
func Calls() []jail.Call {
	return append(jail.Calls(unix.SYS_ACCEPT4, unix.SYS_RECVFROM, unix.SYS_SHUTDOWN, unix.SYS_PPOLL, unix.SYS_READV,
		unix.SYS_WRITEV),
		jail.With(unix.SYS_SOCKETPAIR, jail.Is(0, unix.AF_UNIX), jail.Is(1, unix.SOCK_STREAM|unix.SOCK_CLOEXEC)))
}
