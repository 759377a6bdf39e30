package blk

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

// Calls returns the system calls of this package and of package disklayer, without the calls of the
// Go runtime.
func Calls() []jail.Call {
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return append(jail.Calls(unix.SYS_PREADV, unix.SYS_PWRITEV, unix.SYS_FDATASYNC),
		jail.With(unix.SYS_FALLOCATE, jail.Is(1, punch)))
}
