package net

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/net/stack"
)

//go:generate go test -run TestFilterIsThatOfTheCalls . -update

// calls returns all system calls of the process. The filter in zfilter_linux_amd64.go is generated
// from this list.
func calls() []jail.Call {
	return slices.Concat(jail.RuntimeCalls(), stack.Calls(), jail.Ioctls(unix.SIOCOUTQ),
		jail.Calls(unix.SYS_ACCEPT4, unix.SYS_RECVFROM,
			unix.SYS_RECVMSG, unix.SYS_SENDMSG,
			unix.SYS_SHUTDOWN, unix.SYS_GETRLIMIT), // shutdown for package ctlsock, getrlimit for this package
		[]jail.Call{
			jail.With(unix.SYS_PRLIMIT64, jail.Is(0, 0)), // limits of this process
			// Go's package net tries to read files such as /etc/localtime and somaxconn, but works
			// without them.
			{Number: unix.SYS_OPENAT, Deny: unix.ENOENT}, {Number: unix.SYS_NEWFSTATAT, Deny: unix.ENOENT},
		})
}
