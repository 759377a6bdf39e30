package vsock

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

// Calls returns the system calls of this package, without the calls of the Go runtime. They permit
// accepting connections, but not creating sockets, nor connecting a socket to an address.
func Calls() []jail.Call {
	return append(jail.Calls(unix.SYS_ACCEPT4, unix.SYS_RECVFROM, unix.SYS_SHUTDOWN, unix.SYS_READV,
		unix.SYS_WRITEV), jail.With(unix.SYS_PPOLL, jail.Is(1, 1))) // for one descriptor
}
