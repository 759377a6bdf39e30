package stack

import (
	"cmp"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Default limits of a sandbox.
const (
	defaultBytesPerSecond   = 2 << 30 // each way
	defaultPacketsPerSecond = 500_000 // from the guest
	defaultConnections      = 1024    // UDP flows included
)

// Fixed limits.
const (
	opensPerSecond = 500 // connections and UDP flows; beyond it a SYN is dropped, and sent again
	openBurst      = 1000
	maxOpening     = 256 // connections whose handshake with the guest or the outside is not complete
	maxUDP         = 256 // flows; the least recently used one makes room
	maxEchoes      = 16  // echo requests that wait for an answer

	refusalsPerSecond = 10 // in the log
	refusalBurst      = 100
	passesPerSecond   = 200 // likewise
	passBurst         = 1000
)

// Sizes of buffers, in bytes. Data to and from the guest takes only a copy in memory, so a window
// of maxBuffer does not slow a connection down. A sandbox with many connections gets smaller
// buffers, so that it holds less than 100 MiB.
const (
	maxBuffer     = 256 << 10
	defaultBuffer = 64 << 10
	minBuffer     = 4 << 10
	firstWindow   = 64 << 10
	roomyFlows    = 64  // up to this many flows have buffers that grow to maxBuffer
	normalFlows   = 256 // up to this many have defaultBuffer, and the rest smallBuffer
	smallBuffer   = 16 << 10
	chunkBytes    = 72 << 10 // moved at a time; the longest message of a frame socket fits
	smallChunk    = 4 << 10  // likewise, if there are too many chunks
)

// Shares of this process's memory for data of flows that wait. The rest is for the flows
// themselves: their goroutines and the buffers above.
const (
	chunkShare  = 8 // for chunks of relays
	peekShare   = 16
	injectShare = 4
	flowShare   = 2
	pieceShare  = 32 // for packets in fragments
)

// Assumed size of each, in bytes.
const (
	peekBytes   = 40 << 10  // the first bytes, and those read to find a name in them
	injectBytes = 256 << 10 // headers of a request and an answer, raw and parsed, and TLS on both sides
	flowBytes   = 64 << 10  // a connection without chunks, with the buffers of a sandbox that has very many
)

// Bounds on these for one sandbox.
const (
	maxChunks   = 8 << 20 // bytes of chunks; beyond them it has small ones
	maxPeeks    = 256     // connections whose server is not known yet
	maxInjected = 128     // connections to which secrets are added
)

// LeastMemory is forkd-net's memory on the smallest hosts, in bytes: seven eighths of the bound
// that the daemon sets.
const LeastMemory = 448 << 20

// Times.
const (
	dialTime    = 30 * time.Second
	peekTime    = 5 * time.Second  // for a client to name its server
	dnsTCPTime  = 10 * time.Second // for the next query on a connection
	idleTCP     = 30 * time.Minute // a flow without data; other gateways take 5 to 60 minutes
	idleHalf    = 5 * time.Minute  // after one side has ended
	idleUDP     = 60 * time.Second // half of Linux's nf_conntrack_udp_timeout_stream
	echoTime    = 5 * time.Second
	timeWait    = 2 * time.Second  // RFC 9293 has 2 minutes, for networks that delay segments for long
	lingerTime  = 10 * time.Second // for a guest to end its side after the outside has ended
	synRetries  = 4                // of our SYN-ACK: 15 seconds
	minBurst    = 256 << 10        // bytes that may pass at once, whatever the rate
	burstPart   = 10               // of a second
	packetBurst = 4096
)

func (s *Stack) makeLimiters(l netproto.Limits) {
	s.packets = rate.NewLimiter(0, packetBurst)
	s.opens = rate.NewLimiter(opensPerSecond, openBurst)
	s.logged = rate.NewLimiter(refusalsPerSecond, refusalBurst)
	s.passes = rate.NewLimiter(passesPerSecond, passBurst)
	s.up, s.down = rate.NewLimiter(0, minBurst), rate.NewLimiter(0, minBurst)
	s.setLimitsLocked(l)
}

func (s *Stack) setLimitsLocked(l netproto.Limits) {
	l.BytesPerSecond = cmp.Or(l.BytesPerSecond, defaultBytesPerSecond)
	l.PacketsPerSecond = cmp.Or(l.PacketsPerSecond, defaultPacketsPerSecond)
	// Records and snapshots of earlier versions may have more, and a host may have few files.
	l.Connections = min(cmp.Or(l.Connections, defaultConnections), netproto.MaxConnections,
		uint32(gate.Fair(int(s.host.most))))
	s.limits = l
	s.packets.SetLimit(rate.Limit(l.PacketsPerSecond))
	for _, limiter := range []*rate.Limiter{s.up, s.down} {
		limiter.SetLimit(rate.Limit(l.BytesPerSecond))
		limiter.SetBurst(int(max(minBurst, min(l.BytesPerSecond/burstPart, 1<<30))))
	}
}

// setBuffers sets the buffer sizes of a connection according to the number of flows of the sandbox.
func setBuffers(ep tcpip.Endpoint, flows int) {
	size := int64(defaultBuffer)
	switch {
	case flows <= roomyFlows:
		return // they grow by themselves
	case flows > normalFlows:
		size = smallBuffer
	}
	ep.SocketOptions().SetReceiveBufferSize(size, true)
	ep.SocketOptions().SetSendBufferSize(size, true)
}
