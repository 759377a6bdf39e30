package net

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// If a guest does not use the network, its device costs only a descriptor: no goroutine, and
// no page of the rings.
func TestIdleDeviceCostsLittle(t *testing.T) {
	g := start(t, allFeatures, 1536, 8)
	g.fromPeer(message(header{}, 60))
	g.tr.Quiesce()
	var w codec.Writer
	g.tr.Save(&w)
	writes := 0
	g.mem.SetFreezer(func(guestmem.GPA, int) { writes++ })
	if err := g.tr.Restore(codec.NewReader(w.Bytes())); err != nil {
		t.Fatal(err)
	}
	if more, err := g.dev.Notify(); more || err != nil {
		t.Fatal(more, err)
	}
	if d := g.dev; d.done != nil || d.parts.Len() != 0 || d.used != nil || d.first != nil || writes != 0 {
		t.Errorf("poll goroutine %v, scratch %v, %v, %v, %d writes to guest memory", d.done != nil, d.parts, d.used, d.first,
			writes)
	}
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
}

// A copy of a device has its own peer. That peer receives the frames that the original had not sent
// when it was copied.
func TestSaveAndRestore(t *testing.T) {
	g := start(t, allFeatures, 1536, 64)
	g.awaken()
	before, after := message(segmented, 9000), message(header{}, 60)
	g.tr.Quiesce()
	g.post(before) // the device is not notified
	var w codec.Writer
	g.tr.Save(&w)
	child := attach(t, g.mem)
	child.newPeer()
	child.rx, child.tx = rekick(g.rx, child), rekick(g.tx, child)
	child.rxGPA, child.rxLen, child.txAt = g.rxGPA, g.rxLen, g.txAt
	child.tr.Quiesce()
	for n := range w.Bytes() {
		if child.tr.Restore(codec.NewReader(w.Bytes()[:n])) == nil {
			t.Errorf("%d of %d bytes of state were accepted", n, len(w.Bytes()))
		}
	}
	if err := child.tr.Restore(codec.NewReader(w.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := child.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	child.wantAtPeer(before)
	child.tx.Wait()
	child.send(after)
	child.wantAtPeer(after)
	child.fromPeer(before)
	child.fromPeer(after)
	child.wantAtGuest(before)
	child.wantAtGuest(after)
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
}

func TestStateOfAnotherVersionIsRefused(t *testing.T) {
	var w codec.Writer
	w.U32(stateVersion + 1)
	if newDevice(t).Restore(codec.NewReader(w.Bytes())) == nil {
		t.Error("accepted")
	}
}

// rekick returns a copy of r whose notifications go to g's device.
func rekick(r *virtiotest.Ring, g *guest) *virtiotest.Ring {
	c := *r
	c.SetKick(func() { virtiotest.Store(g.tr, mmio.RegQueueNotify, 0) })
	return &c
}

// Moving frames allocates nothing on the Go heap, because a VMM hardly ever collects its heap.
func TestFramesAreNotAllocated(t *testing.T) {
	g := start(t, allFeatures, 1536, 96)
	g.awaken()
	g.tr.Quiesce()
	g.dev.transport = &virtiotest.Direct{}
	long := message(segmented, 40000)
	exchange := func() {
		g.post(long, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
		g.fromPeer(long)
	}
	exchange()
	got := make([]byte, frame.MaxMessage)
	first := true
	n := testing.AllocsPerRun(1, func() { // AllocsPerRun calls the function once before it counts
		for _, way := range []func() (bool, error){g.dev.transmit, g.dev.receive} {
			if _, err := way(); err != nil {
				t.Error(err)
			}
		}
		if n, err := unix.Read(g.peer, got); err != nil || n != len(long) {
			t.Errorf("%d bytes, %v", n, err)
		}
		if first {
			first = false
			exchange()
		}
	})
	if n != 0 {
		t.Errorf("two frames allocate %v times", n)
	}
	for range 2 {
		g.wantAtGuest(long)
	}
	g.dev.transport = g.tr
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
}

// A pause does not wait for all frames that the driver has queued.
func TestStopsForAPause(t *testing.T) {
	g := start(t, allFeatures, 1536, 8)
	g.awaken()
	g.tr.Quiesce()
	paused := &virtiotest.Direct{Paused: true}
	g.dev.transport = paused
	for range 10 {
		g.post(message(header{}, 60))
	}
	for _, way := range []func() (bool, error){g.dev.transmit, g.dev.receive} {
		if more, err := way(); !more || err != nil {
			t.Errorf("%v, %v", more, err)
		}
	}
	if _, _, ok := g.tx.Poll(); ok {
		t.Error("a frame was sent although a pause waits")
	}
	g.dev.transport = g.tr
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		g.tx.Wait()
	}
}

// A device with an invalid ring needs a reset, like any other device.
func TestBrokenRingFailsTheDevice(t *testing.T) {
	for name, spoil := range map[string]func(g *guest){
		"index": func(g *guest) {
			if err := g.mem.StoreUint16(g.tx.Avail+2, 2*ringSize); err != nil {
				t.Fatal(err)
			}
			g.tx.Kick()
		},
		"receive buffer outside of memory": func(g *guest) {
			g.rx.Add(virtiotest.Buf{GPA: memSize, Len: 100, Write: true})
			g.fromPeer(message(header{}, 60))
		},
		"receive buffer too short": func(g *guest) {
			g.rx.Add(virtiotest.Buf{GPA: rxBase, Len: frame.HeaderBytes - 1, Write: true})
			g.fromPeer(message(header{}, 60))
		},
		"receive buffer without room": func(g *guest) {
			g.rx.Add(virtiotest.Buf{GPA: rxBase, Len: frame.HeaderBytes, Write: true})
			g.rx.Add(virtiotest.Buf{GPA: rxBase, Len: 1})
			g.fromPeer(message(header{}, 60))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, allFeatures, 1536, 0)
			g.awaken()
			spoil(g)
			virtiotest.Eventually(t, "the device fails", func() bool { return g.tr.Err() != nil })
			g.drive(allFeatures, 1536, 8) // a driver that starts again can use the network
			g.txAt = txBase
			g.awaken()
		})
	}
}
