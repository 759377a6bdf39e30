package guestmem

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

// Calls are those of this package beside the runtime's.
func Calls() []jail.Call {
	return append(jail.Ioctls(ioPagemapScan), jail.Calls(unix.SYS_SENDMSG, unix.SYS_RECVMSG)...)
}
