// Package frametest makes frame sockets for tests and benchmarks. Product code must not import it,
// because no process except the VMM is allowed to have the VMM's end of a frame socket.
package frametest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
)

// Pair makes a socket for frames, with one end for a VM and the other for forkd-net.
func Pair() (vmm, net *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a frame socket: %w", err)
	}
	// The descriptors are still blocking here, so package os does not add the files to its poller,
	// and File.Fd does not change their mode.
	vmm, net = os.NewFile(uintptr(fds[0]), "frame socket"), os.NewFile(uintptr(fds[1]), "frame socket")
	for _, fd := range fds {
		err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, frame.BufferBytes),
			unix.SetNonblock(fd, true))
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("make a frame socket: %w", err), vmm.Close(), net.Close())
		}
	}
	return vmm, net, nil
}
