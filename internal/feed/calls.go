package feed

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

//go:generate go test -run TestFilterIsThatOfTheCalls . -update

// calls returns all system calls of the process. The filter in zfilter_linux_amd64.go is generated
// from this list. The process opens no files and no sockets, and sends no descriptors.
func calls() []jail.Call {
	return slices.Concat(jail.RuntimeCalls(), jail.Calls(unix.SYS_RECVMSG),
		[]jail.Call{jail.With(unix.SYS_SENDTO, jail.Is(4, 0))}) // without an address
}
