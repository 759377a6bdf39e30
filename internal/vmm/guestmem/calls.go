package guestmem

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

// Calls returns the system calls of this package, without the calls of the Go runtime.
func Calls() []jail.Call {
	return append(jail.Ioctls(ioPagemapScan), jail.Calls(unix.SYS_WRITEV, unix.SYS_RECVMSG)...)
}
