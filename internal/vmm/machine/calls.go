package machine

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmm/uffd"
	"github.com/forkd/forkd/internal/vmm/virtio/blk"
	"github.com/forkd/forkd/internal/vmm/virtio/vsock"
)

// Calls returns the system calls of a machine after New, without the calls of the Go runtime. A
// device without a Calls function needs only the calls of package guestmem.
func Calls() []jail.Call {
	return slices.Concat(kvm.Calls(), guestmem.Calls(), uffd.Calls(), blk.Calls(), vsock.Calls(), []jail.Call{
		jail.With(unix.SYS_GETPRIORITY, jail.Is(0, unix.PRIO_PROCESS)),
		jail.With(unix.SYS_SETPRIORITY, jail.Is(0, unix.PRIO_PROCESS)),
	})
}

// SetUpCalls returns the system calls that only New makes.
func SetUpCalls() []jail.Call { return kvm.SetUpCalls() }
