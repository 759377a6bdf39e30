package stack

import (
	"cmp"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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

// Fixed limits of a sandbox.
const (
	opensPerSecond = 500 // new connections and UDP flows; SYNs above the limit are dropped, and the guest repeats them
	openBurst      = 1000
	maxOpening     = 256 // connections whose handshake with the guest or the server is incomplete
	maxUDP         = 256 // UDP flows; a new flow replaces the least recently used one
	maxEchoes      = 16  // echo requests that wait for an answer

	refusalsPerSecond = 10 // lines in the flow log about refused flows
	refusalBurst      = 100
	passesPerSecond   = 200 // lines in the flow log about permitted flows
	passBurst         = 1000
)

// Sizes of buffers, in bytes, and the numbers of flows that may have them. Connections with the
// guest have no delay, because their data is only copied in memory. So maxBuffer is a large enough
// window for full speed.
const (
	maxBuffer     = 256 << 10
	defaultBuffer = 64 << 10
	minBuffer     = 4 << 10
	firstWindow   = 64 << 10
	farFlows      = 8        // the first flows of a sandbox, up to this number, may have farBuffers
	roomyFlows    = 64       // the first flows of a sandbox, up to this number, may have roomyBuffers
	normalFlows   = 256      // the first flows of a sandbox, up to this number, may have normalBuffers
	chunkBytes    = 72 << 10 // size of a chunk; the longest message of a frame socket fits into it
	smallChunk    = 4 << 10  // size of a chunk if there are too many chunks
)

// buffers are the sizes of a TCP flow's buffers, in bytes.
type buffers struct {
	guest         int64 // in each direction to and from the guest; if it is maxBuffer, the buffer grows to it as needed
	receive, send int   // SO_RCVBUF and SO_SNDBUF of the host's socket; Linux doubles both
	grows         int64 // size to which Linux may enlarge the host's receive buffer; 0 if the buffer has a fixed size
}

// Each TCP flow has one of these sizes, or farBuffers. Sizes above smallBuffers count against a
// limit of the sandbox and against a limit of all sandboxes. smallBuffers are part of flowBytes.
//
// If a program sets the size of a socket's buffer, Linux does not resize the buffer later, and
// limits the size to net.core.rmem_max or wmem_max. A buffer without a set size grows up to the
// size in tcp_rmem or tcp_wmem, which is megabytes for each flow. farBuffers set no size in the
// direction from the server, because a window of roomyBuffers is too small for a distant server.
var (
	roomyBuffers  = buffers{guest: maxBuffer, receive: 512 << 10, send: 512 << 10}
	normalBuffers = buffers{guest: defaultBuffer, receive: 64 << 10, send: 64 << 10}
	smallBuffers  = buffers{guest: 16 << 10, receive: 16 << 10, send: 8 << 10}
)

// bytes returns how many bytes a flow may hold in its buffers, in both directions together.
func (b buffers) bytes() int64 { return 2*(b.guest+int64(b.receive+b.send)) + b.grows }

// farBuffers returns buffers whose size Linux chooses in the direction from the server.
func (h *Host) farBuffers() buffers {
	return buffers{guest: roomyBuffers.guest, send: roomyBuffers.send, grows: h.receive}
}

// Shares of this process's memory: a constant n stands for 1/n of the memory. flowShare is for the
// flows themselves: their goroutines and smallBuffers (see flowBytes). The other shares bound the
// memory that flows may hold in addition, such as data that waits.
const (
	chunkShare  = 8 // share for chunks of relays
	peekShare   = 16
	injectShare = 8
	flowShare   = 2
	growShare   = 8  // share for buffers larger than smallBuffers
	pieceShare  = 32 // share for packets in fragments
	effectShare = 32 // share for requests that are held
	linkShare   = 32 // share for frame sockets, and for packets that wait for room in them
)

// Memory that is counted for each kind of flow, in bytes.
const (
	peekBytes   = 40 << 10  // for a flow whose server is not known: its first bytes, and the memory for parsing them
	injectBytes = 256 << 10 // for secrets and holds: headers of request and answer, raw and parsed, and TLS on both sides
	flowBytes   = 160 << 10 // a connection with smallBuffers and 64 KiB that Linux adds, without its chunks
)

// Limits of one sandbox's share of the memory above.
const (
	maxChunks      = 8 << 20  // bytes of chunks; above the limit the sandbox gets small chunks
	maxPeeks       = 256      // connections that have not named their server yet
	maxInjected    = 128      // connections to which secrets are added, or whose host is held
	fewPeeks       = 16       // replaces maxPeeks if all sandboxes together use half of the room for such connections
	fewInjected    = 8        // replaces maxInjected if all sandboxes together use half of the room for such connections
	fewEffectBytes = 32 << 10 // bytes of held requests of a sandbox if all sandboxes together use half of the room
	growPart       = 4        // a sandbox may use 1/growPart of the room for buffers, and half of this for roomyBuffers
)

// LeastMemory is forkd-net's memory on the smallest hosts, in bytes: seven eighths of the limit
// that the daemon sets for the process.
const LeastMemory = 448 << 20

// Time limits, and limits of repetitions and bursts.
const (
	dialTime    = 30 * time.Second
	peekTime    = 5 * time.Second  // limit for a client to name its server
	dnsTCPTime  = 10 * time.Second // limit for the next query on a connection
	idleTCP     = 30 * time.Minute // a TCP flow without data ends after this time; other gateways take 5 to 60 minutes
	idleHalf    = 5 * time.Minute  // a TCP flow without data ends after this time if one side has ended
	idleUDP     = 60 * time.Second // limit for a UDP flow without data; half of Linux's nf_conntrack_udp_timeout_stream
	echoTime    = 5 * time.Second  // limit for the answer to an echo request
	timeWait    = 2 * time.Second  // duration of TIME-WAIT; RFC 9293 has 2 minutes, but here no segment can be delayed
	lingerTime  = 10 * time.Second // limit for the guest to close its side after the server has closed the connection
	synRetries  = 4                // repetitions of our SYN-ACK, which take 15 seconds
	minBurst    = 256 << 10        // bytes that may pass at once, however low the rate limit is
	burstPart   = 10               // the bytes that the rate limit permits in 1/burstPart second may also pass at once
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

// buffers returns the sizes of a TCP flow's buffers. The first call chooses the sizes by the number
// of the sandbox's flows and the memory left. The sizes count against the limits until the flow
// ends.
func (f *flow) buffers() buffers {
	s := f.stack
	switch {
	case f.sizes != buffers{}:
	case f.place <= farFlows && s.host.receive > 0 && s.roomy.take(s.host.farBuffers().bytes()):
		f.sizes, f.room = s.host.farBuffers(), &s.roomy
	case f.place <= roomyFlows && s.roomy.take(roomyBuffers.bytes()):
		f.sizes, f.room = roomyBuffers, &s.roomy
	case f.place <= normalFlows && s.grown.take(normalBuffers.bytes()):
		f.sizes, f.room = normalBuffers, &s.grown
	default:
		f.sizes = smallBuffers
	}
	return f.sizes
}

// set applies the sizes to the connection with the guest.
func (b buffers) set(ep tcpip.Endpoint) {
	if b.guest == maxBuffer {
		return // the buffers grow by themselves
	}
	ep.SocketOptions().SetReceiveBufferSize(b.guest, true)
	ep.SocketOptions().SetSendBufferSize(b.guest, true)
}

// control applies the sizes to the socket of the connection to the server. It does so before
// net.Dialer connects the socket, because the window that Linux offers the server depends on the
// size at that time.
func (b buffers) control(_, _ string, raw syscall.RawConn) error {
	var err error
	lost := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, b.send)
		if b.grows == 0 {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, b.receive))
		}
	})
	return errors.Join(lost, err)
}
