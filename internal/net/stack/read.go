package stack

import (
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gvisor "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/forkd/forkd/internal/net/inspect"
)

// read handles the messages from the frame socket until the peer has hung up. If a guest exceeds
// its packet rate, read pauses. The guest's frames then wait in the socket and are not lost.
func (s *Stack) read() {
	defer close(s.ended)
	for {
		// receive takes a chunk only when there are bytes, so an idle socket has no chunk.
		chunk, n, err := receive(s.link.raw, &s.host.chunks, nil)
		if err != nil {
			return
		}
		s.take(chunk.bytes[:n])
		s.host.chunks.give(chunk)
		if !s.pause() {
			return
		}
	}
}

// pause waits until the packet rate permits another packet. It returns false if the stack is
// closed.
func (s *Stack) pause() bool {
	now := time.Now()
	wait := s.packets.ReserveN(now, 1).DelayFrom(now)
	if wait == 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// take handles one message of the guest.
func (s *Stack) take(message []byte) {
	packet, reason := inspect.Message(message)
	switch {
	case reason != "":
		s.counters.Dropped.Add(1)
		// Messages of these two classes are not logged, because Linux sends them without a
		// program's request.
		if reason != inspect.Ethertype && reason != inspect.NotToUs {
			s.counters.refuse(string(reason))
		}
	case packet.Class == inspect.ARP:
		s.link.writeMessage(inspect.ARPReply(packet.IP))
	case packet.Class == inspect.Echo:
		s.takeEcho(packet)
	case packet.Opens && !s.opens.Allow():
		s.counters.Dropped.Add(1)
		s.counters.refuse(openRate)
	case packet.Piece:
		whole, kept := s.fragments.add(packet.IP, time.Now())
		if !kept {
			s.counters.Dropped.Add(1)
		}
		if whole != nil {
			s.deliver(inspect.Packet{IP: whole})
		}
	default:
		s.deliver(packet)
	}
}

// openRate is the reason for dropping a SYN when the guest opens connections too fast.
const openRate = "open-rate"

// deliver passes a packet to gVisor's stack. The stack does not verify a checksum that the guest
// has left to the device.
func (s *Stack) deliver(packet inspect.Packet) {
	pkt := gvisor.NewPacketBuffer(gvisor.PacketBufferOptions{Payload: buffer.MakeWithData(packet.IP)})
	defer pkt.DecRef()
	s.link.validated.Store(packet.Partial)
	s.link.dispatcher.DeliverNetworkPacket(header.IPv4ProtocolNumber, pkt)
}
