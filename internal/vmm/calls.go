package vmm

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/vmm/machine"
)

//go:generate go test -run TestFilterIsThatOfTheCalls . -update

// maxFiles bounds the descriptors of a VMM: connections of the guest (vsock's maxConns), layers of
// its disks, and those of one request.
const maxFiles = 4096

// calls are all system calls of the process. setUpCalls are those that it no longer makes once it
// has a machine. The filters in zfilter_linux_amd64.go are generated from them: the first permits
// calls, the second then forbids setUpCalls.
func calls() []jail.Call {
	return slices.Concat(jail.RuntimeCalls(), machine.Calls(), setUpCalls(),
		jail.Calls(unix.SYS_ACCEPT4, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_SHUTDOWN, // ctlsock's
			unix.SYS_FTRUNCATE), // of new layers
		[]jail.Call{
			jail.LimitFilesCall(),
			jail.With(unix.SYS_SETSOCKOPT, jail.Is(1, unix.SOL_SOCKET), jail.Is(2, unix.SO_SNDBUF)),
			jail.With(unix.SYS_SETSOCKOPT, jail.Is(1, unix.SOL_SOCKET), jail.Is(2, unix.SO_SNDBUFFORCE)),
		})
}

func setUpCalls() []jail.Call {
	return append(machine.SetUpCalls(), jail.OnTimeCall(), jail.NarrowCall())
}
