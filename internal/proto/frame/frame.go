// Package frame defines the interface between a VM's network device and forkd-net: the format of
// Ethernet frames on the socket between them, and the addresses of the two ends. These addresses
// are the same in every VM.
//
// A message on the socket consists of a struct virtio_net_hdr_v1 (virtio 1.2 §5.1.6, HeaderBytes
// long, num_buffers 0) and a frame. The frame may be longer than the MTU if the header requests
// segmentation. Neither end blocks. If the socket is full, the sender keeps the message. If the
// other end is closed, the sender drops the message.
//
// The VMM accepts its end of the socket itself, see vmmproto.SetNet. So no other process has this
// end.
//
// The package defines constants. It makes no socket and parses no frames. It does not import net
// and net/netip, because a VMM must not contain these packages.
package frame

// Addresses inside a VM. 192.0.2.0/24 is TEST-NET-1 (RFC 5737), which no user's network uses. The
// addresses are the same in all VMs, so that a fork need not change them.
const (
	Prefix     = "192.0.2.0/24"
	Guest      = "192.0.2.2"
	Gateway    = "192.0.2.1" // answers ARP, DNS and echo requests
	PrefixBits = 24          // number of bits in Prefix

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

// BufferBytes is the size of a send buffer, in bytes. The VMM always requests this size for its end
// of a frame socket, and forkd-net requests it when a smaller buffer is full. Such a buffer has
// room for three of the longest messages and the kernel's bookkeeping, so that one message can be
// written while another is read. The kernel limits the size to net.core.wmem_max, commonly 208 KiB.
const BufferBytes = 256 << 10
