package stack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"

	"github.com/forkd/forkd/internal/hostroute"
	"github.com/forkd/forkd/internal/net/dns"
	"github.com/forkd/forkd/internal/net/flowlog"
	"github.com/forkd/forkd/internal/net/inject"
	"github.com/forkd/forkd/internal/net/policy"
)

// Host holds the limits, the resolvers and the flow log that the stacks of all sandboxes share. Use
// NewHost.
type Host struct {
	Resolver *dns.Resolver
	Log      *flowlog.Log

	chunks  chunks
	held    room                         // counts the bytes in the chunks of relays
	peeks   room                         // counts the memory of connections that have not named their server yet
	injects room                         // counts the memory of connections whose requests this process reads
	effects room                         // counts the memory of held requests
	pieces  room                         // counts the memory of incomplete packets
	links   room                         // counts the memory of frame sockets, and of packets that wait for room in them
	grown   room                         // counts the bytes of buffers larger than smallBuffers
	trust   atomic.Pointer[inject.Trust] // nil until a sandbox has a secret
	proxy   atomic.Pointer[upstream]     // nil if the host's network has no proxy
	own     atomic.Pointer[[]netip.Addr]
	sockets atomic.Int64 // number of open sockets of flows
	most    int64
	udp     atomic.Int64 // number of open sockets of UDP flows
	queries atomic.Int64 // number of open sockets of DNS queries over UDP
	asks    int64        // maximum of the counter queries
	receive int64        // largest receive buffer that Linux gives a TCP socket, in bytes; 0 if unknown

	ends ends
}

// maxHostUDP bounds the UDP flows of all sandboxes. Each flow takes a port, which the rest of the
// host cannot use. The bound is a quarter of Linux's ephemeral ports (ip_local_port_range).
const maxHostUDP = 7000

// maxHostQueries limits how many DNS queries over UDP may wait for an answer, in total for all
// sandboxes. Each query takes a port. The limit is separate from maxHostUDP, so that flows and
// queries cannot block each other. If the process may open only a few files, the limit is smaller:
// the maximum number of flows divided by queryPart. When half of the limit is in use, no more than
// fewQueries queries of one sandbox may wait, so that sandboxes with slow queries leave room for
// others.
const (
	maxHostQueries = 1024
	queryPart      = 8
	fewQueries     = 4
)

// NewHost returns a Host. The flows of all sandboxes together may have at most the given number of
// sockets.
func NewHost(sockets int) *Host {
	h := &Host{Resolver: &dns.Resolver{}, Log: flowlog.New(), most: int64(sockets)}
	h.asks = min(maxHostQueries, max(maxQueries, h.most/queryPart))
	h.SetMemory(LeastMemory)
	return h
}

// SetMemory sets the memory limit of the process, in bytes. It must be called before any stack is
// made.
func (h *Host) SetMemory(bytes int64) {
	h.held.most, h.peeks.most, h.injects.most = bytes/chunkShare, bytes/peekShare, bytes/injectShare
	h.pieces.most, h.grown.most = bytes/pieceShare, bytes/growShare
	h.links.most, h.effects.most = bytes/linkShare, bytes/effectShare
}

// SetReceive sets the size to which Linux may enlarge the receive buffer of a TCP socket, in bytes.
// Without this call, all buffers have fixed sizes. SetReceive must be called before any stack is
// made.
func (h *Host) SetReceive(bytes int64) { h.receive = bytes }

// LargestReceive returns the size to which Linux may enlarge the receive buffer of a TCP socket, in
// bytes. If the file tcp_rmem (tcp(7)) cannot be read, the result is 0.
func LargestReceive() int64 {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_rmem")
	if err != nil {
		return 0
	}
	var least, usual, largest int64
	if _, err := fmt.Sscan(string(text), &least, &usual, &largest); err != nil {
		return 0
	}
	return max(0, largest)
}

// Sockets returns the maximum number of flow sockets of a process that may open the given number of
// files and use the given number of bytes of memory.
func Sockets(files int, memory int64) int { return int(min(int64(files), memory/flowShare/flowBytes)) }

// SetOwn sets the host's addresses. To apply them to open flows, call Stack.Redecide. For new
// flows, forkd-net also asks the kernel, because the kernel knows a new address before the daemon
// does.
func (h *Host) SetOwn(addrs []netip.Addr) { h.own.Store(&addrs) }

// isOwn reports whether packets to an address would stay on the host.
func (h *Host) isOwn(addr netip.Addr) bool { return h.listed(addr) || hostroute.IsLocal(addr) }

// listed reports whether an address is in the list that SetOwn has set.
func (h *Host) listed(addr netip.Addr) bool {
	own := h.own.Load()
	return own != nil && slices.Contains(*own, addr)
}

// takeSocket counts a new socket of a flow. It returns false if there are already too many such
// sockets.
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

// takeQuery counts a new query of a sandbox. Its argument is the number of the sandbox's queries,
// including the new one. takeQuery returns false if too many queries are waiting already.
func (h *Host) takeQuery(own int) bool {
	n := h.queries.Add(1)
	if n > h.asks || n > h.asks/2 && own > fewQueries {
		h.queries.Add(-1)
		return false
	}
	return true
}

func (h *Host) giveQuery() { h.queries.Add(-1) }

// dialTCP connects to an address outside. The socket has buffers of the given sizes.
func dialTCP(ctx context.Context, to netip.AddrPort, b buffers) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: dialTime, Control: b.control}
	conn, err := d.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// dialUDP makes a socket that exchanges packets with an address outside.
func dialUDP(to netip.AddrPort) (*net.UDPConn, error) {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, err
	}
	if err := conn.SetWriteBuffer(sendBuffer); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
