package stack

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// fragments reassembles the packets that a guest sends in fragments (RFC 791 §3.2). gVisor's stack
// can also reassemble packets, but would use up to 4 MiB for each sandbox, without a limit for all
// sandboxes together.
//
// A packet whose fragments contradict each other is dropped. If a limit is reached, the packet
// whose first fragment arrived earliest is dropped, because its missing fragments are probably
// lost.
type fragments struct {
	room room // counts the memory of the stored fragments

	mu      sync.Mutex
	packets map[packetID]*partial
}

// packetID identifies a packet of the guest. All fragments of the packet have the same packetID.
type packetID struct {
	to       netip.Addr
	protocol uint8
	number   uint16
}

// partial is a packet that still lacks some of its fragments.
type partial struct {
	begun  time.Time
	pieces []piece // the fragments that have arrived, sorted by offset, without overlap
	has    int     // number of bytes of payload that have arrived
	wants  int     // length of the whole payload; 0 until the fragment with the packet's end has arrived
	cost   int64   // number of bytes that fragments.room counts for the packet
}

// piece is a fragment.
type piece struct {
	packet []byte // the fragment with its header
	offset int    // offset of its payload in the packet's payload, in bytes
}

func (p *piece) payload() []byte { return p.packet[header.IPv4MinimumSize:] }
func (p *piece) end() int        { return p.offset + len(p.payload()) }

// Limits for the incomplete packets of one sandbox. A guest sends all fragments of a packet
// together, and no fragment can be lost on the way, so few packets are incomplete at a time.
const (
	maxPartials  = 64
	maxFragments = 256 << 10        // bytes; enough for four of the largest packets
	fragmentTime = 15 * time.Second // time within which a packet must become complete, as in RFC 791

	// Memory that is counted for each fragment and each packet in addition to their content, in
	// bytes.
	pieceBytes   = 96
	partialBytes = 512

	maxPayload = 65535 - header.IPv4MinimumSize
)

// add stores a copy of a fragment. If no other fragment of the packet is missing, add returns the
// whole packet. If the fragment was dropped, add returns false. The caller must have checked that
// the header is valid and has no options.
func (f *fragments) add(packet []byte, now time.Time) (whole []byte, kept bool) {
	h := header.IPv4(packet)
	id := packetID{netip.AddrFrom4(h.DestinationAddress().As4()), h.Protocol(), h.ID()}
	next := piece{packet, int(h.FragmentOffset())}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.packets[id]
	if p != nil && p.isOld(now) {
		f.dropLocked(id)
		p = nil
	}
	if p == nil {
		p = &partial{begun: now}
	}
	at, fits := p.place(&next, h.More())
	if !fits {
		f.dropLocked(id)
		return nil, false
	}
	if at < 0 { // the guest has sent this fragment before
		return nil, true
	}
	if !f.reserveLocked(id, p, len(packet)) {
		return nil, false
	}
	next.packet = slices.Clone(packet)
	p.pieces = slices.Insert(p.pieces, at, next)
	p.has += len(next.payload())
	if !h.More() {
		p.wants = next.end()
	}
	if p.has != p.wants {
		return nil, true
	}
	f.dropLocked(id)
	return p.whole(), true
}

func (p *partial) isOld(now time.Time) bool { return now.Sub(p.begun) > fragmentTime }

// place returns the index at which a fragment belongs in p.pieces, or -1 if p.pieces already has
// the fragment. If the fragment contradicts p.pieces, or is invalid by itself, place returns false.
func (p *partial) place(next *piece, more bool) (at int, fits bool) {
	size := len(next.payload())
	switch {
	case size == 0, next.end() > maxPayload, more && size%8 != 0:
		return 0, false
	case p.wants != 0 && next.end() > p.wants:
		return 0, false
	case !more && p.wants != 0 && next.end() != p.wants:
		return 0, false
	case !more && len(p.pieces) > 0 && p.pieces[len(p.pieces)-1].end() > next.end():
		return 0, false
	}
	at, same := slices.BinarySearchFunc(p.pieces, next.offset, func(have piece, offset int) int {
		return cmp.Compare(have.offset, offset)
	})
	if same {
		return -1, p.pieces[at].end() == next.end()
	}
	fits = (at == 0 || p.pieces[at-1].end() <= next.offset) &&
		(at == len(p.pieces) || next.end() <= p.pieces[at].offset)
	return at, fits
}

// whole returns the complete packet, with the header of the first piece.
func (p *partial) whole() []byte {
	packet := make([]byte, 0, header.IPv4MinimumSize+p.wants)
	packet = append(packet, p.pieces[0].packet[:header.IPv4MinimumSize]...)
	for i := range p.pieces {
		packet = append(packet, p.pieces[i].payload()...)
	}
	h := header.IPv4(packet)
	h.SetTotalLength(uint16(len(packet)))
	h.SetFlagsFragmentOffset(0, 0)
	h.SetChecksum(0)
	h.SetChecksum(^h.CalculateChecksum())
	return packet
}

// reserveLocked makes room for a fragment of p, by dropping other packets if necessary. If p is not
// in f.packets, reserveLocked adds p.
func (f *fragments) reserveLocked(id packetID, p *partial, size int) bool {
	cost := int64(size + pieceBytes)
	if f.packets[id] == nil {
		cost += partialBytes
		if len(f.packets) >= maxPartials {
			f.dropOldestLocked()
		}
	}
	for !f.room.take(cost) {
		if len(f.packets) == 0 || f.dropOldestLocked() == id {
			return false
		}
	}
	p.cost += cost
	if f.packets == nil {
		f.packets = map[packetID]*partial{}
	}
	f.packets[id] = p
	return true
}

// dropOldestLocked drops the packet whose first fragment arrived earliest, and returns its ID.
// There must be at least one packet.
func (f *fragments) dropOldestLocked() (oldest packetID) {
	var first *partial
	for id, p := range f.packets {
		if first == nil || p.begun.Before(first.begun) {
			oldest, first = id, p
		}
	}
	f.dropLocked(oldest)
	return oldest
}

func (f *fragments) dropLocked(id packetID) {
	if p := f.packets[id]; p != nil {
		f.room.give(p.cost)
		delete(f.packets, id)
	}
}

// sweep drops packets that have been incomplete for too long.
func (f *fragments) sweep(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, p := range f.packets {
		if p.isOld(now) {
			f.dropLocked(id)
		}
	}
}

// clear drops all packets.
func (f *fragments) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.packets {
		f.dropLocked(id)
	}
}
