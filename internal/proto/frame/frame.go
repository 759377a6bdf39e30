// Package frame defines the interface between a VM's network device and forkd-net: the format of
// Ethernet frames on the socket between them, and the addresses of the two ends, which are the same
// in every VM.
//
// A message on the socket consists of a struct virtio_net_hdr_v1 (virtio 1.2 §5.1.6, HeaderBytes
// long, num_buffers 0) and a frame. The frame may be longer than the MTU if the header requests
// segmentation. Neither end blocks. If the socket is full, the sender keeps the message. If the
// other end is closed, the sender drops the message.
//
// The package defines constants and makes the socket. It parses no frames. It does not import net
// and net/netip, because a VMM must not contain these packages.
package frame

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Addresses inside a VM. 192.0.2.0/24 is TEST-NET-1 (RFC 5737), which no user's network uses. The
// addresses are the same in all VMs, so that a fork need not change them.
const (
	Prefix     = "192.0.2.0/24"
	Guest      = "192.0.2.2"
	Gateway    = "192.0.2.1" // answers ARP, DNS and echo requests
	PrefixBits = 24          // bits of the prefix

	// MTU is the MTU that the device announces to its driver, in bytes.
	MTU = 1500
)

// Hardware addresses. They are locally administered and contain "fkd".
var (
	GuestMAC   = [6]byte{0x02, 'f', 'k', 'd', 0x00, 0x02}
	GatewayMAC = [6]byte{0x02, 'f', 'k', 'd', 0x00, 0x01}
)

// Sizes of messages on the socket and of their parts, in bytes.
const (
	HeaderBytes = 12    // struct virtio_net_hdr_v1
	MaxFrame    = 65550 // Ethernet header, and the longest IPv4 packet (the receiver splits it into segments)
	MaxMessage  = HeaderBytes + MaxFrame
)

// BufferBytes is the size of the buffer that each end requests, in bytes. There is room for three
// of the longest messages and the kernel's bookkeeping, so that one message can be written while
// another is read. The kernel limits the size to net.core.wmem_max, commonly 208 KiB.
const BufferBytes = 256 << 10

// Pair makes a socket for frames. The caller sends one end to a VMM and the other to forkd-net, and
// then closes both.
func Pair() (vmm, net *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a frame socket: %w", err)
	}
	// The descriptors are still blocking here, so package os does not add the files to its poller.
	// This process does not read or write the files, and polling them would cost system calls and a
	// wake-up in every fork.
	vmm, net = os.NewFile(uintptr(fds[0]), "frame socket"), os.NewFile(uintptr(fds[1]), "frame socket")
	for _, fd := range fds {
		err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, BufferBytes), unix.SetNonblock(fd, true))
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("make a frame socket: %w", err), vmm.Close(), net.Close())
		}
	}
	return vmm, net, nil
}
