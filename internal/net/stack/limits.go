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
	defaultBytesPerSecond   = 2 << 30 // in each direction
	defaultPacketsPerSecond = 500_000 // from the guest
	defaultConnections      = 1024    // including UDP flows
)

// Fixed limits.
const (
	opensPerSecond = 500 // connections and UDP flows; SYNs above the limit are dropped, and the guest repeats them
	openBurst      = 1000
	maxOpening     = 256 // connections whose handshake with the guest or the server is incomplete
	maxUDP         = 256 // UDP flows; a new flow replaces the least recently used one
	maxEchoes      = 16  // echo requests that wait for an answer

	refusalsPerSecond = 10 // lines in the flow log
	refusalBurst      = 100
	passesPerSecond   = 200 // lines in the flow log
	passBurst         = 1000
)

// Sizes of buffers, in bytes. Connections with the guest have no delay, because their data is only
// copied in memory. So maxBuffer is a large enough window for full speed. The more connections a
// sandbox has, the smaller their buffers, so that all of them together have less than 100 MiB.
const (
	maxBuffer     = 256 << 10
	defaultBuffer = 64 << 10
	minBuffer     = 4 << 10
	firstWindow   = 64 << 10
	roomyFlows    = 64  // with at most this many flows, buffers grow up to maxBuffer
	normalFlows   = 256 // with at most this many flows, new ones get defaultBuffer, and above it smallBuffer
	smallBuffer   = 16 << 10
	chunkBytes    = 72 << 10 // size of a chunk; the longest message of a frame socket fits
	smallChunk    = 4 << 10  // size of a chunk if there are too many chunks
)

// Parts of this process's memory (1/n) that may hold data of waiting flows. The rest is for the
// flows themselves: their goroutines and the buffers above.
const (
	chunkShare  = 8 // for chunks of relays
	peekShare   = 16
	injectShare = 4
	flowShare   = 2
	pieceShare  = 32 // for packets in fragments
)

// Memory that is counted for each kind of flow, in bytes.
const (
	peekBytes   = 40 << 10  // the first bytes, and what parsing them takes
	injectBytes = 256 << 10 // the headers of a request and an answer, raw and parsed, and TLS with guest and server
	flowBytes   = 64 << 10  // a connection with buffers of smallBuffer, without its chunks
)

// Limits of one sandbox for the memory above.
const (
	maxChunks   = 8 << 20 // bytes of chunks; above the limit the sandbox gets small chunks
	maxPeeks    = 256     // connections that have not named their server yet
	maxInjected = 128     // connections to which secrets are added
)

// LeastMemory is forkd-net's memory on the smallest hosts, in bytes: seven eighths of the limit
// that the daemon sets for the process.
const LeastMemory = 448 << 20

// Times.
const (
	dialTime    = 30 * time.Second
	peekTime    = 5 * time.Second  // for a client to name its server
	dnsTCPTime  = 10 * time.Second // for the next query on a connection
	idleTCP     = 30 * time.Minute // a flow without data; other gateways take 5 to 60 minutes
	idleHalf    = 5 * time.Minute  // a flow without data, after one side has ended
	idleUDP     = 60 * time.Second // half of Linux's nf_conntrack_udp_timeout_stream
	echoTime    = 5 * time.Second
	timeWait    = 2 * time.Second  // RFC 9293 has 2 minutes, but between guest and stack no segment can be delayed
	lingerTime  = 10 * time.Second // for the guest to close its side after the server has closed the connection
	synRetries  = 4                // repetitions of our SYN-ACK, which take 15 seconds
	minBurst    = 256 << 10        // bytes that may pass at once, at any rate limit
	burstPart   = 10               // the bytes that the rate permits in 1/10 second may also pass at once
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
	// Records and snapshots of earlier versions may ask for more connections than are permitted
	// now. A host may also be unable to open so many files.
	l.Connections = min(cmp.Or(l.Connections, defaultConnections), netproto.MaxConnections,
		uint32(gate.Fair(int(s.host.most))))
	s.limits = l
	s.packets.SetLimit(rate.Limit(l.PacketsPerSecond))
	for _, limiter := range []*rate.Limiter{s.up, s.down} {
		limiter.SetLimit(rate.Limit(l.BytesPerSecond))
		limiter.SetBurst(int(max(minBurst, min(l.BytesPerSecond/burstPart, 1<<30))))
	}
}

// setBuffers sets the buffer sizes of a new connection according to the number of the sandbox's
// flows.
func setBuffers(ep tcpip.Endpoint, flows int) {
	size := int64(defaultBuffer)
	switch {
	case flows <= roomyFlows:
		return // the buffers grow by themselves
	case flows > normalFlows:
		size = smallBuffer
	}
	ep.SocketOptions().SetReceiveBufferSize(size, true)
	ep.SocketOptions().SetSendBufferSize(size, true)
}
