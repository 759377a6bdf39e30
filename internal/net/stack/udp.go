package stack

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gvisor "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/forkd/forkd/internal/net/policy"
)

// ports identifies a UDP flow. The remote address and port are those of the guest.
type ports = gvisor.TransportEndpointID

// udpFlow forwards the UDP packets between one pair of ports. It queues no packets. If the socket
// to the server has no room, the packet is dropped, as a router would do.
type udpFlow struct {
	*flow
	id  ports
	out *net.UDPConn
	raw syscall.RawConn // raw form of out, for sends that do not block
}

// takeUDP handles each UDP packet of the guest. If it returns false and the packet is not
// malformed, the stack answers that the port is unreachable.
func (s *Stack) takeUDP(id ports, pkt *gvisor.PacketBuffer) bool {
	payload, ok := udpPayload(pkt)
	if !ok {
		return false // the stack then counts the packet as malformed, and sends no answer
	}
	if destination(id.LocalAddress, id.LocalPort) == gatewayDNS {
		s.answerDNS(id, payload)
		return true
	}
	s.mu.Lock()
	f := s.udp[id]
	s.mu.Unlock()
	if f == nil {
		if f = s.openUDP(id); f == nil {
			return false
		}
	}
	if s.up.AllowN(time.Now(), len(payload)) && sendNow(f.raw, payload) {
		f.up.Add(uint64(len(payload)))
		f.touch()
	}
	return true
}

// udpPayload returns the payload of a packet with a valid length and checksum.
func udpPayload(pkt *gvisor.PacketBuffer) ([]byte, bool) {
	h, ip := header.UDP(pkt.TransportHeader().Slice()), pkt.Network()
	lengthOK, checksumOK := header.UDPValid(h, func() uint16 { return pkt.Data().Checksum() }, uint16(pkt.Data().Size()),
		pkt.NetworkProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), pkt.RXChecksumValidated)
	if !lengthOK || !checksumOK {
		return nil, false
	}
	return pkt.Data().AsRange().ToSlice()[:h.Length()-header.UDPMinimumSize], true
}

// sendBuffer bounds the bytes of a flow's packets that wait in the kernel for a slow network. The
// longest packet fits into it. The kernel doubles the number for its own records.
const sendBuffer = 64 << 10

// openUDP begins a flow. It returns nil if the flow is refused.
func (s *Stack) openUDP(id ports) *udpFlow {
	to := destination(id.LocalAddress, id.LocalPort)
	if !s.opens.Allow() {
		s.refused(record{protocol: "udp", address: to}, openRate)
		return nil
	}
	s.makeRoomUDP()
	f, refusal := s.begin(policy.UDP, to)
	if f == nil {
		s.refused(record{protocol: "udp", address: to}, refusal)
		return nil
	}
	if s.decide(f, nil) != policy.Pass {
		s.end(f)
		return nil
	}
	out, err := dialUDP(to)
	if err != nil {
		f.fail(err)
		s.end(f)
		return nil
	}
	raw, err := out.SyscallConn()
	if err != nil {
		f.fail(err)
		_ = out.Close()
		s.end(f)
		return nil
	}
	u := &udpFlow{flow: f, id: id, out: out, raw: raw}
	s.mu.Lock()
	s.udp[id] = u
	s.mu.Unlock()
	s.tasks.Go(func() { s.relayUDP(u) })
	return u
}

// makeRoomUDP ends the least recently used UDP flow if the sandbox has too many UDP flows.
func (s *Stack) makeRoomUDP() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, oldest := 0, (*flow)(nil)
	for f := range s.flows {
		if f.Protocol == policy.UDP && f.ctx.Err() == nil {
			n++
			if oldest == nil || f.last.Load() < oldest.last.Load() {
				oldest = f
			}
		}
	}
	if n >= maxUDP {
		oldest.killLocked(errRoom)
	}
}

// sendNow sends a packet if the socket has room for it, and reports whether it did. It does not
// block, because the caller also reads the guest's other packets. It does not queue the packet,
// because a queue would take memory in each flow.
func sendNow(raw syscall.RawConn, payload []byte) (sent bool) {
	// The callback always returns true, so that Write does not wait. The error of Write may be
	// about an earlier packet. It is ignored here, because the socket's reader also receives such
	// errors.
	_ = raw.Write(func(fd uintptr) bool {
		n, err := unix.Write(int(fd), payload)
		sent = err == nil && n == len(payload)
		return true
	})
	return sent
}

// relayUDP forwards packets from the server to the guest until the flow has been idle for too long,
// or the server answers that the port is unreachable.
func (s *Stack) relayUDP(f *udpFlow) {
	defer s.end(f.flow)
	stop := context.AfterFunc(f.ctx, func() { _ = f.out.Close() })
	if err := s.downwardUDP(f); f.ctx.Err() == nil {
		f.fail(err)
	}
	stop()
	_ = f.out.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.udp, f.id) // so that the guest's next packet begins a new flow
}

// downwardUDP forwards packets to the guest until a read fails. It returns the error of this read.
func (s *Stack) downwardUDP(f *udpFlow) error {
	pool := &s.host.chunks
	for {
		chunk, n, err := receive(f.raw, pool, nil)
		if errors.Is(err, io.EOF) {
			continue // an empty packet, which no program needs
		}
		if err != nil {
			return err
		}
		if s.down.AllowN(time.Now(), n) {
			s.sendUDP(f.id, chunk.bytes[:n])
			f.down.Add(uint64(n))
			f.touch()
		}
		pool.give(chunk)
	}
}

// sendUDP sends a packet to the guest, or drops it if the guest has no room for it.
func (s *Stack) sendUDP(id ports, payload []byte) {
	route, err := s.ipstack.FindRoute(nic, id.LocalAddress, id.RemoteAddress, ipv4.ProtocolNumber, false)
	if err != nil {
		return // the stack is closed
	}
	defer route.Release()
	pkt := gvisor.NewPacketBuffer(gvisor.PacketBufferOptions{
		ReserveHeaderBytes: header.UDPMinimumSize + int(route.MaxHeaderLength()), Payload: buffer.MakeWithData(payload)})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = udp.ProtocolNumber
	h := header.UDP(pkt.TransportHeader().Push(header.UDPMinimumSize))
	length := uint16(pkt.Size())
	h.Encode(&header.UDPFields{SrcPort: id.LocalPort, DstPort: id.RemotePort, Length: length})
	sum := ^h.CalculateChecksum(checksum.Combine(route.PseudoHeaderChecksum(udp.ProtocolNumber, length),
		pkt.Data().Checksum()))
	if sum == 0 {
		sum = 0xffff // 0 means that there is no checksum (RFC 768)
	}
	h.SetChecksum(sum)
	if err := route.WritePacket(gvisor.NetworkHeaderParams{Protocol: udp.ProtocolNumber, TTL: ipv4.DefaultTTL},
		pkt); err != nil {
		s.counters.Dropped.Add(1)
	}
}

// maxQuery is the maximum length of a DNS query in bytes. A name has up to 255 bytes, and options
// follow.
const maxQuery = 2048

// maxQueries is how many DNS queries of one sandbox may wait for an answer.
const maxQueries = 64

// answerDNS answers a query in a new task, because the resolver may be slow. It drops the query if
// maxQueries or the host's limit is reached. Clients then repeat the query.
func (s *Stack) answerDNS(id ports, query []byte) {
	if len(query) > maxQuery {
		query = query[:maxQuery]
	}
	select {
	case s.queries <- struct{}{}:
	default:
		s.counters.Dropped.Add(1)
		return
	}
	if !s.host.takeQuery(len(s.queries)) {
		<-s.queries
		s.counters.Dropped.Add(1)
		return
	}
	s.tasks.Go(func() {
		defer func() { <-s.queries }()
		defer s.host.giveQuery()
		if answer := s.answer(s.ctx, query, false); answer != nil {
			s.sendUDP(id, answer)
		}
	})
}
