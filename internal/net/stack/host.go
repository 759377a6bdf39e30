package stack

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/forkd/forkd/internal/hostroute"
	"github.com/forkd/forkd/internal/net/dns"
	"github.com/forkd/forkd/internal/net/flowlog"
	"github.com/forkd/forkd/internal/net/inject"
	"github.com/forkd/forkd/internal/net/policy"
)

// Host holds what all stacks share: sockets to the outside, the resolvers and the flow log. Use
// NewHost.
type Host struct {
	Resolver *dns.Resolver
	Log      *flowlog.Log

	chunks  chunks
	held    room                         // bytes in the chunks of relays
	peeks   room                         // bytes of connections that have not named their server yet
	injects room                         // bytes of connections to which secrets are added
	pieces  room                         // bytes of incomplete packets
	trust   atomic.Pointer[inject.Trust] // nil until there is a secret
	proxy   atomic.Pointer[upstream]     // nil if there is none
	own     atomic.Pointer[[]netip.Addr]
	sockets atomic.Int64 // number of sockets that flows have to the outside
	most    int64
	udp     atomic.Int64 // number of UDP flows among them
	queries atomic.Int64 // sockets to resolvers, for queries over UDP
	asks    int64        // maximum of queries
}

// maxHostUDP bounds the UDP flows of all sandboxes, each of which takes a port that the rest of the
// host cannot use. It is a quarter of Linux's ephemeral ports (ip_local_port_range).
const maxHostUDP = 7000

// maxHostQueries limits the UDP queries of all sandboxes that wait for an answer, each of which
// takes a port. It is separate from maxHostUDP, so that flows cannot block queries, or queries
// flows. In a process with few files, the limit is lower: one queryPart-th of its flows. Once half
// of all places are taken, a sandbox may have at most fewQueries. So slow names of some sandboxes
// leave places for others.
const (
	maxHostQueries = 1024
	queryPart      = 8
	fewQueries     = 4
)

// NewHost returns a Host. sockets is the maximum number of sockets to the outside of all sandboxes.
func NewHost(sockets int) *Host {
	h := &Host{Resolver: &dns.Resolver{}, Log: flowlog.New(), most: int64(sockets)}
	h.asks = min(maxHostQueries, max(maxQueries, h.most/queryPart))
	h.SetMemory(LeastMemory)
	return h
}

// SetMemory sets the memory limit of the process, in bytes. Call it before any stack is made.
func (h *Host) SetMemory(bytes int64) {
	h.held.most, h.peeks.most, h.injects.most = bytes/chunkShare, bytes/peekShare, bytes/injectShare
	h.pieces.most = bytes / pieceShare
}

// Sockets returns how many sockets to the outside a process supports with so many files and so many
// bytes of memory.
func Sockets(files int, memory int64) int { return int(min(int64(files), memory/flowShare/flowBytes)) }

// SetOwn sets the host's addresses. It does not affect open flows, for which Stack.Redecide decides
// again. New flows also ask the kernel, which knows a new address before the daemon does.
func (h *Host) SetOwn(addrs []netip.Addr) { h.own.Store(&addrs) }

// isOwn reports whether packets to an address would stay on the host.
func (h *Host) isOwn(addr netip.Addr) bool { return h.listed(addr) || hostroute.IsLocal(addr) }

// listed reports whether SetOwn has set an address.
func (h *Host) listed(addr netip.Addr) bool {
	own := h.own.Load()
	return own != nil && slices.Contains(*own, addr)
}

// takeSocket counts a socket if another one is permitted, and reports whether it is.
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

// takeQuery counts a query if another one is permitted, and reports whether it is. own is the
// number of the sandbox's queries, including this one.
func (h *Host) takeQuery(own int) bool {
	n := h.queries.Add(1)
	if n > h.asks || n > h.asks/2 && own > fewQueries {
		h.queries.Add(-1)
		return false
	}
	return true
}

func (h *Host) giveQuery() { h.queries.Add(-1) }

// dialTCP connects to an address outside.
func dialTCP(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: dialTime}
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
