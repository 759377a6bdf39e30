package sshmux

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

//go:generate go test -run TestFilterIsThatOfTheCalls . -update

// calls returns all system calls of the process. The filter in zfilter_linux_amd64.go is generated
// from this list. The process opens no sockets itself, and sends no descriptors.
func calls() []jail.Call {
	return slices.Concat(jail.RuntimeCalls(), jail.Calls(unix.SYS_RECVMSG, unix.SYS_SHUTDOWN),
		[]jail.Call{jail.With(unix.SYS_SENDTO, jail.Is(4, 0)), // without an address
			jail.LimitFilesCall(), jail.With(unix.SYS_PRLIMIT64, jail.Is(0, 0), jail.Is(1, unix.RLIMIT_DATA))})
}
