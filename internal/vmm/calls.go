package vmm

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/vmm/machine"
)

//go:generate go test -run TestFilterIsThatOfTheCalls . -update

// maxFiles is the maximum number of open descriptors of a VMM: for the guest's connections
// (maxConns in package vsock), the layers of the VM's disks, and one request of the daemon.
const maxFiles = 4096

// calls returns all system calls that the process may make. setUpCalls returns the calls among them
// that are forbidden once the process has a machine. The two filters in zfilter_linux_amd64.go are
// generated from these lists: the filter named allowed permits the calls of the first list, and the
// filter named denied forbids the calls of the second list.
func calls() []jail.Call {
	return slices.Concat(jail.RuntimeCalls(), machine.Calls(), setUpCalls(),
		// calls of package ctlsock
		jail.Calls(unix.SYS_ACCEPT4, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_SHUTDOWN,
			unix.SYS_FTRUNCATE), // used for new layers
		[]jail.Call{
			// There is no sendmsg, because a VMM must not send descriptors: the last close of a
			// file can wait for a lock that the VMM holds (see docs/threat-model.md).
			jail.With(unix.SYS_SENDTO, jail.Is(3, unix.MSG_NOSIGNAL), jail.Is(4, 0)), // without an address
			jail.LimitFilesCall(),
			jail.With(unix.SYS_SETSOCKOPT, jail.Is(1, unix.SOL_SOCKET), jail.Is(2, unix.SO_SNDBUF)),
			jail.With(unix.SYS_SETSOCKOPT, jail.Is(1, unix.SOL_SOCKET), jail.Is(2, unix.SO_SNDBUFFORCE)),
		})
}

// setUpCalls returns the calls that a process needs only until it has a machine. It lists
// epoll_create1, because pollers are created with the machine. If a VMM could create many pollers,
// they could all poll one socket, and a process that writes to the other end would have to wake
// them all.
func setUpCalls() []jail.Call {
	return append(machine.SetUpCalls(), jail.OnTimeCall(), jail.NarrowCall(), jail.Calls(unix.SYS_EPOLL_CREATE1)[0])
}
