// Package frame is the contract between a virtual machine's network device and forkd-net. It
// defines the format of Ethernet frames on the socket between them, and the addresses of the two
// ends, which are the same in every VM.
//
// One message of the socket is one struct virtio_net_hdr_v1 (virtio 1.2 §5.1.6, HeaderBytes long,
// num_buffers 0) followed by one frame. The frame may be longer than the MTU if the header requests
// segmentation. Neither end waits for the other: messages without room stay with the sender, and
// messages without a peer are dropped.
//
// The package defines the values and makes the socket. It parses no frame. It does not import the
// packages net and net/netip, which a VMM must not link.
package frame

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Addresses inside a VM. 192.0.2.0/24 is TEST-NET-1 (RFC 5737), which no user's network uses. The
// addresses are the same in all VMs, so a fork need not change them.
const (
	Prefix     = "192.0.2.0/24"
	Guest      = "192.0.2.2"
	Gateway    = "192.0.2.1" // answers ARP, DNS and echo requests
	PrefixBits = 24          // bits of the prefix

	// MTU is the MTU that the device announces to its driver, in bytes.
	MTU = 1500
)

// Hardware addresses: locally administered, and containing "fkd".
var (
	GuestMAC   = [6]byte{0x02, 'f', 'k', 'd', 0x00, 0x02}
	GatewayMAC = [6]byte{0x02, 'f', 'k', 'd', 0x00, 0x01}
)

// Sizes in bytes.
const (
	HeaderBytes = 12    // struct virtio_net_hdr_v1
	MaxFrame    = 65550 // an Ethernet header, and the longest IPv4 packet whose segmentation is left to the peer
	MaxMessage  = HeaderBytes + MaxFrame
)

// BufferBytes is the size of the buffer that each end requests, in bytes: three of the longest
// messages and their bookkeeping, so that one message can be written while another is read. The
// kernel caps it at net.core.wmem_max, commonly 208 KiB, and counts its own bookkeeping as part of
// it.
const BufferBytes = 256 << 10

// Pair makes a socket for frames. One end is donated to a VMM, the other to forkd-net; the caller
// closes its own copies.
func Pair() (vmm, net *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a frame socket: %w", err)
	}
	// The os package polls a file if its descriptor is already non-blocking. This process does not
	// read or write these two files, and polling them would cost every fork system calls and a
	// wake-up.
	vmm, net = os.NewFile(uintptr(fds[0]), "frame socket"), os.NewFile(uintptr(fds[1]), "frame socket")
	for _, fd := range fds {
		err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, BufferBytes), unix.SetNonblock(fd, true))
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("make a frame socket: %w", err), vmm.Close(), net.Close())
		}
	}
	return vmm, net, nil
}
