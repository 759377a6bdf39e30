package net

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

func TestFramesGoBothWays(t *testing.T) {
	g := start(t, allFeatures, 1536, 64)
	long := message(segmented, frame.MaxFrame)
	short := message(header{}, 60)
	for range 3 {
		g.send(short)
		g.wantAtPeer(short)
		g.send(long, 5, 7, 100, 40000)
		g.wantAtPeer(long)
		g.fromPeer(short)
		g.fromPeer(long)
		g.wantAtGuest(short)
		g.wantAtGuest(long)
	}
}

// The device clears the fields of the guest's header that must not reach the peer.
func TestHeadersArePassedOnClean(t *testing.T) {
	g := start(t, allFeatures, 2048, 8)
	g.awaken()
	want := message(header{flags: flagNeedsCsum, csumStart: 34, csumOffset: 16}, 100)
	dirty := bytes.Clone(want)
	dirty[0] |= 0xfe               // unknown flags
	dirty[10], dirty[11] = 77, 200 // num_buffers
	g.send(dirty)
	g.wantAtPeer(want)
	want[0] |= flagDataValid
	dirty[0] = want[0] | 0xf0
	g.fromPeer(dirty)
	g.wantAtGuest(want)
}

// If a header is invalid for its frame, the device drops the frame. Other frames are not affected.
func TestBadFramesAreDropped(t *testing.T) {
	with := func(change func(h *header)) header {
		h := segmented
		change(&h)
		return h
	}
	const all = FCsum | FGuestCsum | FHostTSO4 | FGuestTSO4
	for name, c := range map[string]struct {
		h        header
		n        int
		features uint64
		fits     bool
	}{
		"segmented":          {segmented, 9000, all, true},
		"longest":            {segmented, frame.MaxFrame, all, true},
		"too long":           {segmented, frame.MaxFrame + 1, all, false},
		"segments of 0":      {with(func(h *header) { h.gsoSize = 0 }), 9000, all, false},
		"without a checksum": {with(func(h *header) { h.flags = 0 }), 9000, all, false},
		"TCP over IPv6":      {with(func(h *header) { h.gsoType = 4 }), 9000, all, false},
		"UDP":                {with(func(h *header) { h.gsoType = 3 }), 9000, all, false},
		"ECN":                {with(func(h *header) { h.gsoType |= 0x80 }), 9000, all, false},
		"headers too long":   {with(func(h *header) { h.hdrLen = 9001 }), 9000, all, false},
		"not offered":        {segmented, 9000, FCsum | FGuestCsum, false},
		"plain":              {header{}, ethernetBytes + frame.MTU, 0, true},
		"above the MTU":      {header{}, ethernetBytes + frame.MTU + 1, all, false},
		"shortest":           {header{}, ethernetBytes, 0, true},
		"too short":          {header{}, ethernetBytes - 1, all, false},
		"empty":              {header{}, 0, all, false},
		"checksum":           {header{flags: flagNeedsCsum, csumStart: 34, csumOffset: 16}, 52, all, true},
		"checksum outside":   {header{flags: flagNeedsCsum, csumStart: 34, csumOffset: 16}, 51, all, false},
		"checksum far away":  {header{flags: flagNeedsCsum, csumStart: 0xffff, csumOffset: 0xffff}, 1000, all, false},
		"checksum of it all": {header{flags: flagNeedsCsum, csumStart: 0}, 100, all, false},
		"unasked checksum":   {header{flags: flagNeedsCsum, csumStart: 34, csumOffset: 16}, 52, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, virtio.FVersion1|FMrgRxbuf|c.features, 4096, 32)
			g.awaken()
			tested, next := message(c.h, c.n), message(header{}, 70)
			g.send(tested, frame.HeaderBytes)
			g.send(next)
			g.fromPeer(tested)
			g.fromPeer(next)
			if c.fits {
				g.wantAtPeer(tested)
				g.wantAtGuest(tested)
			}
			g.wantAtPeer(next)
			g.wantAtGuest(next)
		})
	}
}

// The device drops frames with an incomplete header, and frames with too many pieces for one
// message.
func TestFragmentsAreDropped(t *testing.T) {
	g := start(t, allFeatures, 2048, 8)
	g.awaken()
	g.send(make([]byte, frame.HeaderBytes-1))
	g.fromPeer(make([]byte, frame.HeaderBytes-1))
	const table, pieces, desc = 0x30000, maxParts, ringSize - 1
	m := message(segmented, pieces)
	if err := g.mem.WriteAt(m, txBase); err != nil {
		t.Fatal(err)
	}
	for i, at := uint16(0), guestmem.GPA(txBase); i < pieces; i++ {
		b := virtiotest.Buf{GPA: at, Len: 1}
		if i == 0 {
			b.Len += frame.HeaderBytes
		}
		virtiotest.PutDesc(t, g.mem, table, i, b, min(1, pieces-1-i), i+1)
		at += guestmem.GPA(b.Len)
	}
	virtiotest.PutDesc(t, g.mem, g.tx.Desc, desc, virtiotest.Buf{GPA: table, Len: 16 * pieces}, 4, 0) // indirect
	g.tx.Publish(desc)
	g.tx.Kick()
	if head, _ := g.tx.Wait(); head != desc {
		t.Fatalf("chain %d came back", head)
	}
	h := message(header{}, 80)
	g.send(h)
	g.wantAtPeer(h)
	g.fromPeer(h)
	g.wantAtGuest(h)
}

// A driver that has accepted fewer features gets only frames that it can handle.
func TestSmallDriver(t *testing.T) {
	g := start(t, virtio.FVersion1, 2048, 8)
	g.awaken()
	valid := message(header{flags: flagDataValid}, 100)
	g.fromPeer(valid)
	valid[0] = 0
	g.wantAtGuest(valid)
	g.fromPeer(message(segmented, 9000))
	g.fromPeer(message(header{}, 100))
	if head, n := g.rx.Wait(); n != frame.HeaderBytes+100 {
		t.Errorf("%d bytes in buffer %d", n, head)
	}
}

// Without mergeable buffers, a frame that does not fit into one buffer is dropped.
func TestOneBufferForOneFrame(t *testing.T) {
	g := start(t, virtio.FVersion1|FGuestCsum|FGuestTSO4, 3000, 8)
	g.awaken()
	fits := message(segmented, 3000-frame.HeaderBytes)
	g.fromPeer(message(segmented, 3001-frame.HeaderBytes))
	g.fromPeer(fits)
	g.wantAtGuest(fits)
}

// While the driver has too few buffers, frames wait in the socket. No frame is lost.
func TestFramesWaitForBuffers(t *testing.T) {
	g := start(t, allFeatures, 1000, 2)
	g.awaken()
	var sent [][]byte
	for range 4 {
		sent = append(sent, message(segmented, 2500), message(header{}, 60))
	}
	for _, m := range sent {
		g.fromPeer(m)
	}
	g.waitUntil("frames wait", func(d *Device) bool { return d.stalled })
	if _, _, ok := g.rx.Poll(); ok {
		t.Fatal("a part of a frame was delivered")
	}
	g.addRX(rxBase + 2000)
	g.rx.Kick()
	for _, m := range sent {
		g.wantAtGuest(m)
	}
}

// A frame that is too long for all buffers of a full queue does not block other frames.
func TestFrameTooLongForTheQueue(t *testing.T) {
	g := start(t, allFeatures, 64, ringSize)
	g.awaken()
	g.fromPeer(message(segmented, 64*ringSize))
	short := message(header{}, 200)
	g.fromPeer(short)
	g.wantAtGuest(short)
}

// If the peer does not read, frames stay in the queue. When it reads, they arrive in order.
func TestSlowPeer(t *testing.T) {
	g := start(t, allFeatures, 1536, 8)
	var sent [][]byte
	for range ringSize {
		m := message(segmented, 9000)
		sent = append(sent, m)
		if err := g.mem.WriteAt(m, rxBase+0x100000+guestmem.GPA(len(sent))*0x4000); err != nil {
			t.Fatal(err)
		}
		g.tx.Add(virtiotest.Buf{GPA: rxBase + 0x100000 + guestmem.GPA(len(sent))*0x4000, Len: uint32(len(m))})
	}
	g.tx.Kick()
	g.waitUntil("the socket is full", func(d *Device) bool { return d.blocked })
	g.fromPeer(message(header{}, 60)) // the other direction works
	g.rx.Wait()
	for _, m := range sent {
		g.wantAtPeer(m)
		g.tx.Wait()
	}
	g.awaken() // makes the device ask for notifications again
}

func (g *guest) waitUntil(what string, cond func(d *Device) bool) {
	g.t.Helper()
	virtiotest.Eventually(g.t, what, func() (ok bool) {
		g.exclusive(func(d *Device) { ok = cond(d) })
		return ok
	})
}

// Without a peer, frames are dropped and their buffers returned. There may never have been a peer,
// or the peer may have hung up while the device waited for it or was idle.
func TestNoPeer(t *testing.T) {
	g := attach(t, newMem(t))
	g.drive(allFeatures, 1536, 8)
	for range 2 * ringSize {
		g.send(message(header{}, 60))
	}
	if g.dev.done != nil {
		t.Error("the device waits for a peer that it has not")
	}
	g.newPeer()
	g.awaken()
	g.hangUp()
	g.waitUntil("the peer is gone", func(d *Device) bool { return d.peer == nil })
	g.send(message(header{}, 60))

	g.newPeer()
	for range ringSize {
		g.post(message(segmented, 5000))
	}
	g.tx.Kick()
	g.waitUntil("the socket is full", func(d *Device) bool { return d.blocked })
	g.hangUp()
	for range ringSize {
		g.tx.Wait()
	}
	g.newPeer()
	g.awaken()
}

// A new peer gets the frames that wait in the queue because the old peer does not read.
func TestReplacedPeer(t *testing.T) {
	g := start(t, allFeatures, 1536, 8)
	g.awaken()
	for range ringSize {
		g.post(message(segmented, 9000))
	}
	g.tx.Kick()
	g.waitUntil("the socket is full", func(d *Device) bool { return d.blocked })
	g.newPeer()
	back, p := 0, make([]byte, frame.MaxMessage)
	virtiotest.Eventually(t, "all frames are sent", func() bool {
		_, _, _ = unix.Recvfrom(g.peer, p, unix.MSG_DONTWAIT)
		if _, _, ok := g.tx.Poll(); ok {
			back++
		}
		return back == ringSize
	})
	m := message(header{}, 61)
	g.fromPeer(m)
	g.wantAtGuest(m)
}

func TestConfigShowsAddressAndMTU(t *testing.T) {
	want := append(append([]byte(nil), frame.GuestMAC[:]...), 0, 0, 0, 0, frame.MTU&0xff, frame.MTU>>8, 0, 0)
	got := make([]byte, len(want))
	newDevice(t).ReadConfig(0, got)
	if !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	newDevice(t).ReadConfig(1<<40, got)
	if !bytes.Equal(got, make([]byte, len(got))) {
		t.Errorf("beyond the end: %x", got)
	}
}
