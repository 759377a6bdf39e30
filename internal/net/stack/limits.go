package stack

import (
	"cmp"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Limits of a sandbox that asks for none.
const (
	defaultBytesPerSecond   = 2 << 30 // each way
	defaultPacketsPerSecond = 500_000 // from the guest
	defaultConnections      = 1024    // UDP flows included
)

// Limits that nobody changes.
const (
	opensPerSecond = 500 // connections and UDP flows; beyond it a SYN is dropped, and sent again
	openBurst      = 1000
	maxOpening     = 256 // connections whose handshake with guest or outside is not complete
	maxUDP         = 256 // flows; the one unused for longest makes room
	maxEchoes      = 16  // echo requests whose answers are awaited

	refusalsPerSecond = 10 // that are logged
	refusalBurst      = 100
	passesPerSecond   = 200 // likewise
	passBurst         = 1000
)

// Sizes of buffers, in bytes. The guest is as near as a copy of memory, so a window of maxBuffer
// does not slow a connection down; a sandbox with many connections gets smaller ones, so that it
// holds less than 100 MiB.
const (
	maxBuffer     = 256 << 10
	defaultBuffer = 64 << 10
	minBuffer     = 4 << 10
	firstWindow   = 64 << 10
	roomyFlows    = 64  // up to so many flows have buffers that grow to maxBuffer
	normalFlows   = 256 // up to so many have defaultBuffer, and the rest smallBuffer
	smallBuffer   = 16 << 10
	chunkBytes    = 72 << 10 // moved at a time; the longest message of a frame socket fits as well
	smallChunk    = 4 << 10  // likewise, where there are too many chunks
)

// Shares of the memory of this process for what flows hold while they wait for somebody else. The
// rest is for the flows themselves: their goroutines and the buffers above.
const (
	chunkShare  = 8 // for chunks of relays
	peekShare   = 16
	injectShare = 4
	flowShare   = 2
)

// What one of them is counted as, in bytes.
const (
	peekBytes   = 40 << 10  // the first bytes, and what is read for a name in them
	injectBytes = 256 << 10 // headers of a request and an answer, as they came and parsed, and TLS on both sides
	flowBytes   = 64 << 10  // a connection without chunks, with the buffers of one sandbox of very many
)

// Of these one sandbox has at most so much.
const (
	maxChunks   = 8 << 20 // bytes of chunks; beyond them it has small ones
	maxPeeks    = 256     // connections of which nobody knows yet which server they are for
	maxInjected = 128     // connections that have secrets added
)

// LeastMemory is what forkd-net has on the smallest of hosts, in bytes: seven eighths of the bound that
// the daemon sets.
const LeastMemory = 448 << 20

// Times.
const (
	dialTime    = 30 * time.Second
	peekTime    = 5 * time.Second  // for a client to say which server it wants
	dnsTCPTime  = 10 * time.Second // for the next query on a connection
	idleTCP     = 30 * time.Minute // a flow over which nothing passes; other gateways take 5 to 60 minutes
	idleHalf    = 5 * time.Minute  // of which one side has ended
	idleUDP     = 60 * time.Second // as Linux's nf_conntrack_udp_timeout_stream has it, halved
	echoTime    = 5 * time.Second
	timeWait    = 2 * time.Second  // RFC 9293 has 2 minutes for networks in which segments get lost for long
	lingerTime  = 10 * time.Second // for a guest to end its side after ours has ended
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

// setBuffers gives a connection buffers by how many flows the sandbox has.
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
