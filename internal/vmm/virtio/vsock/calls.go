package vsock

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

// Calls returns the system calls of this package, in addition to the runtime's. It makes pairs of
// sockets and accepts connections; it cannot make a socket that connects anywhere. The pairs are
// streams: a datagram socket would send to any address that it names.
func Calls() []jail.Call {
	return append(jail.Calls(unix.SYS_ACCEPT4, unix.SYS_RECVFROM, unix.SYS_SHUTDOWN, unix.SYS_PPOLL, unix.SYS_READV,
		unix.SYS_WRITEV),
		jail.With(unix.SYS_SOCKETPAIR, jail.Is(0, unix.AF_UNIX), jail.Is(1, unix.SOCK_STREAM|unix.SOCK_CLOEXEC)))
}
