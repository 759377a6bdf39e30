package vsock

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

// Calls returns the system calls of this package, without those of the Go runtime. They make pairs
// of sockets and accept connections, but cannot make a socket that connects anywhere. The pairs are
// streams, because a datagram socket could send to any address.
func Calls() []jail.Call {
	return append(jail.Calls(unix.SYS_ACCEPT4, unix.SYS_RECVFROM, unix.SYS_SHUTDOWN, unix.SYS_PPOLL, unix.SYS_READV,
		unix.SYS_WRITEV),
		jail.With(unix.SYS_SOCKETPAIR, jail.Is(0, unix.AF_UNIX), jail.Is(1, unix.SOCK_STREAM|unix.SOCK_CLOEXEC)))
}
