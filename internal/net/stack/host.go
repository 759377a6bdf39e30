package stack

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/net/dns"
	"github.com/forkd/forkd/internal/net/flowlog"
	"github.com/forkd/forkd/internal/net/inject"
	"github.com/forkd/forkd/internal/net/policy"
)

// Host is what all stacks share: the way out, the resolvers, the flow log. Use NewHost.
type Host struct {
	Resolver *dns.Resolver
	Log      *flowlog.Log

	chunks  chunks
	trust   atomic.Pointer[inject.Trust] // nil until there is a secret
	own     atomic.Pointer[[]netip.Addr]
	sockets atomic.Int64 // of flows, to the outside
	most    int64
	udp     atomic.Int64 // of these, those of UDP
}

// maxHostUDP bounds the UDP flows of all sandboxes: each takes a port that nobody else on the host
// can have meanwhile. It is a quarter of those that Linux gives out (ip_local_port_range).
const maxHostUDP = 7000

// NewHost returns a Host whose sandboxes together have at most so many sockets to the outside.
func NewHost(sockets int) *Host {
	return &Host{Resolver: &dns.Resolver{}, Log: flowlog.New(), most: int64(sockets)}
}

// SetOwn says which addresses the host has. Those that it gets later are found as well; this is for
// addresses that only others know to be the host's, such as that before a NAT.
func (h *Host) SetOwn(addrs []netip.Addr) { h.own.Store(&addrs) }

// isOwn reports whether packets to an address would stay on the host.
func (h *Host) isOwn(addr netip.Addr) bool {
	if own := h.own.Load(); own != nil && slices.Contains(*own, addr) {
		return true
	}
	return isLocal(addr)
}

// isLocal asks the kernel for the way to an address: to one of its own, it goes from that address.
// Nothing is sent.
func isLocal(addr netip.Addr) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true // too many files: the connection could not be made either
	}
	defer unix.Close(fd)
	const discard = 9 // any port does
	switch unix.Connect(fd, &unix.SockaddrInet4{Port: discard, Addr: addr.As4()}) {
	case nil:
	case unix.ENETUNREACH, unix.EHOSTUNREACH:
		return false // there is no way to it at all
	default:
		return true // such as EACCES: a broadcast comes back to the host
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return true
	}
	from, ok := name.(*unix.SockaddrInet4)
	return ok && from.Addr == addr.As4()
}

// takeSocket counts a socket, if there may be one more.
func (h *Host) takeSocket(protocol policy.Protocol) bool {
	if h.sockets.Add(1) > h.most {
		h.sockets.Add(-1)
		return false
	}
	if protocol == policy.UDP && h.udp.Add(1) > maxHostUDP {
		h.giveSocket(protocol)
		return false
	}
	return true
}

func (h *Host) giveSocket(protocol policy.Protocol) {
	h.sockets.Add(-1)
	if protocol == policy.UDP {
		h.udp.Add(-1)
	}
}

// dialTCP connects to an address outside.
func dialTCP(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}
