package stack

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// fragmentOf returns an IPv4 packet that is one fragment of a larger packet.
func fragmentOf(id uint16, payload []byte, offset int, more bool) []byte {
	p := header.IPv4(guesttest.IPv4(frame.Guest, web, uint8(header.UDPProtocolNumber), payload))
	p.SetID(id)
	flags := uint8(0)
	if more {
		flags = header.IPv4FlagMoreFragments
	}
	p.SetFlagsFragmentOffset(flags, uint16(offset))
	p.SetChecksum(0)
	p.SetChecksum(^p.CalculateChecksum())
	return p
}

// cut returns the fragments of a packet with the given payload. The last parameter is the maximum
// payload of a fragment, in bytes.
func cut(id uint16, payload []byte, most int) (all [][]byte) {
	for at := 0; at < len(payload); at += most {
		end := min(at+most, len(payload))
		all = append(all, fragmentOf(id, payload[at:end], at, end < len(payload)))
	}
	return all
}

func newFragments(own, all int64) *fragments {
	f := &fragments{}
	f.room.most, f.room.of = own, &room{most: all}
	return f
}

// Packets are reassembled no matter in which order their fragments arrive, and even if fragments of
// other packets arrive in between.
func TestFragmentsBecomeWhole(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		f := newFragments(1<<20, 1<<20)
		want := map[uint16][]byte{}
		var sent [][]byte
		for id := range uint16(1 + random.IntN(4)) {
			payload := make([]byte, 2+random.IntN(maxPayload-1))
			if round == 0 {
				payload = make([]byte, maxPayload)
			}
			for i := range payload {
				payload[i] = byte(random.Uint32())
			}
			want[id] = payload
			parts := cut(id, payload, 8*(1+random.IntN(185)))
			if len(parts) == 1 { // a packet in one part is not fragmented
				parts = cut(id, payload, 8)
			}
			sent = append(sent, parts...)
			sent = append(sent, parts[random.IntN(len(parts)-1)]) // one fragment comes twice
		}
		if round%2 == 0 {
			random.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
		}
		for _, p := range sent {
			whole, _ := f.add(p, time.Unix(0, 0))
			if whole == nil {
				continue
			}
			h := header.IPv4(whole)
			if !h.IsValid(len(whole)) || !h.IsChecksumValid() || h.More() || h.FragmentOffset() != 0 ||
				int(h.TotalLength()) != len(whole) || !bytes.Equal(h.Payload(), want[h.ID()]) {
				t.Fatalf("round %d: another packet than was cut: %d bytes, %x", round, len(whole), whole[:20])
			}
			delete(want, h.ID())
		}
		if len(want) > 0 {
			t.Fatalf("round %d: %d packets did not become whole", round, len(want))
		}
		f.clear()
		if n, of := f.room.used.Load(), f.room.of.used.Load(); n != 0 || of != 0 {
			t.Fatalf("round %d: %d and %d bytes are counted for nothing", round, n, of)
		}
	}
}

// If a fragment is invalid, the other fragments with its ID are also dropped.
func TestFragmentsThatContradict(t *testing.T) {
	p := make([]byte, 16)
	first, middle, last := fragmentOf(1, p, 0, true), fragmentOf(1, p, 16, true), fragmentOf(1, p[:5], 32, false)
	for name, sent := range map[string][][]byte{
		"overlap with the one before":  {first, fragmentOf(1, p, 8, true)},
		"overlap with the one behind":  {middle, fragmentOf(1, p, 8, true)},
		"the same place, longer":       {first, fragmentOf(1, make([]byte, 24), 0, true)},
		"two ends":                     {last, fragmentOf(1, p[:7], 40, false)},
		"two ends, the second is less": {last, fragmentOf(1, p[:7], 8, false)},
		"more than the end":            {last, fragmentOf(1, p, 48, true)},
		"an end before others":         {middle, fragmentOf(1, p[:3], 0, false)},
		"no multiple of 8":             {first, fragmentOf(1, p[:15], 16, true)},
		"nothing":                      {first, fragmentOf(1, nil, 16, true)},
		"more than a packet can be":    {first, fragmentOf(1, p, 65512, true)},
	} {
		f := newFragments(1<<20, 1<<20)
		for i, p := range sent {
			if whole, kept := f.add(p, time.Unix(0, 0)); whole != nil || kept != (i == 0) {
				t.Errorf("%s: fragment %d: kept %t, and %d bytes are whole", name, i, kept, len(whole))
			}
		}
		if n := f.room.used.Load(); n != 0 || len(f.packets) != 0 {
			t.Errorf("%s: %d bytes are left", name, n)
		}
		var whole []byte
		for _, p := range [][]byte{last, first, middle} {
			whole, _ = f.add(p, time.Unix(0, 0))
		}
		if len(whole) != header.IPv4MinimumSize+37 {
			t.Errorf("%s: then a packet of %d bytes", name, len(whole))
		}
	}
}

// If there is no room, packets of the sandbox that needs room are dropped first. Packets that are
// too old are also dropped.
func TestFragmentsGo(t *testing.T) {
	begun := func(f *fragments) (ids []uint16) {
		for id := range f.packets {
			ids = append(ids, id.number)
		}
		slices.Sort(ids)
		return ids
	}
	p := make([]byte, 1400)
	at := time.Unix(0, 0)
	f := newFragments(10_000, 1<<20)
	for id := range uint16(10) {
		at = at.Add(time.Second)
		f.add(fragmentOf(id, p, 0, true), at)
	}
	if got := fmt.Sprint(begun(f)); got != "[6 7 8 9]" {
		t.Errorf("in 10 KB there are %s", got)
	}
	f.sweep(at.Add(fragmentTime - time.Second))
	if got := fmt.Sprint(begun(f)); got != "[8 9]" {
		t.Errorf("after a while there are %s", got)
	}
	f.add(fragmentOf(8, p[:8], 1400, false), at.Add(fragmentTime+time.Second)) // too late to join the earlier fragments
	if got := fmt.Sprint(begun(f), len(f.packets), f.room.used.Load()); got != fmt.Sprint("[8 9] 2 ",
		2*(pieceBytes+partialBytes+header.IPv4MinimumSize)+len(p)+8) {
		t.Errorf("of which %s", got)
	}

	other := newFragments(1<<20, 0)
	other.room.of = f.room.of
	other.room.of.most = f.room.used.Load() + 100
	if _, kept := other.add(fragmentOf(1, p, 0, true), at); kept || len(f.packets) != 2 {
		t.Errorf("one sandbox takes the room of another: %v", begun(f))
	}
	f = newFragments(1<<30, 1<<30)
	for id := range uint16(2 * maxPartials) {
		at = at.Add(time.Millisecond)
		f.add(fragmentOf(id, p[:8], 0, true), at)
	}
	if got := begun(f); len(got) != maxPartials || got[0] != maxPartials {
		t.Errorf("%d packets are begun, from %d", len(got), got[0])
	}
	f = newFragments(100_000, 1<<30)
	for i := range 1000 { // fragments of a packet that needs more memory than the limit
		f.add(fragmentOf(1, p[:8], 16*i, true), at)
	}
	if n := f.room.used.Load(); n > 100_000 || n <= 0 || len(f.packets) != 1 {
		t.Errorf("one packet has %d bytes", n)
	}
}

// TestAttackFragmentsOfManySandboxes sends fragments that never become whole packets. The limits
// for the fragments of one sandbox and of all sandboxes must hold. They must also count the memory
// of the records about the fragments.
func TestAttackFragmentsOfManySandboxes(t *testing.T) {
	earlier := runtime.MemProfileRate
	runtime.MemProfileRate = 1 // records small allocations too
	t.Cleanup(func() { runtime.MemProfileRate = earlier })
	h := NewHost(1000)
	const memory, sandboxes = 32 << 20, 8
	h.SetMemory(memory)
	var all []*Stack
	for n := range sandboxes {
		guest, file := guesttest.New(t)
		s, err := New(h, file, &netproto.Attach{ID: fmt.Sprintf("sb-%d", n), Policy: makePolicy(t, "public")}, &Counters{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
		t.Cleanup(s.Close)
		for i := range 3000 {
			guest.Send(guesttest.Frame(fragmentOf(uint16(i/64), make([]byte, 8), i%64*16, true)))
		}
		waitFor(t, "there is no room for more", func() bool {
			// What remains of the room of all sandboxes may be less than the limit of one sandbox.
			return s.counters.Dropped.Load() > 0 || s.fragments.room.used.Load() > maxFragments*9/10 ||
				h.pieces.used.Load() > memory/pieceShare*9/10
		})
	}
	if n := h.pieces.used.Load(); n > memory/pieceShare || n < memory/pieceShare*9/10 {
		t.Errorf("%d KiB are counted, of %d", n>>10, memory/pieceShare>>10)
	}
	if n := inUse("(*fragments).add"); n > memory/pieceShare || n == 0 {
		t.Errorf("%d sandboxes hold %d KiB, and %d are counted", sandboxes, n>>10, h.pieces.used.Load()>>10)
	}
	if n := inUse("fragmentation.(*Fragmentation).Process"); n > 0 {
		t.Errorf("the network stacks hold %d KiB of fragments", n>>10)
	}
	for _, s := range all {
		s.Close()
	}
	if n := h.pieces.used.Load(); n != 0 {
		t.Errorf("%d bytes of stacks that are closed", n)
	}
}

// A packet of the maximum size can be sent in fragments, even while many other packets are
// incomplete.
func TestTheLargestPacketInFragments(t *testing.T) {
	w := newWorld(t)
	heard := w.ListenUDP(t, web+":53123")
	r := newRig(t, w, "public")
	for i := range 1000 {
		r.guest.Send(guesttest.Frame(fragmentOf(uint16(1000+i), make([]byte, 1400), 1400, true)))
	}
	payload := bytes.Repeat([]byte{1, 2, 3}, 65507/3)
	whole := guesttest.UDP(frame.Guest, web, 1024, 53123, payload)
	for _, p := range cut(7, whole[header.IPv4MinimumSize:], 1480) {
		r.guest.Send(guesttest.Frame(p))
	}
	_ = heard.SetReadDeadline(time.Now().Add(20 * time.Second))
	got := make([]byte, 65536)
	n, _, err := heard.ReadFrom(got)
	if err != nil || !bytes.Equal(got[:n], payload) {
		t.Errorf("%d bytes of %d, %v", n, len(payload), err)
	}
}
