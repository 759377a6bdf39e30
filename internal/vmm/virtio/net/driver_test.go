package net

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

const (
	ringBase = 0x10000
	ringSize = 128
	txBase   = 0x40000
	rxBase   = 0x100000
	memSize  = 8 << 20

	allFeatures = virtio.FVersion1 | virtio.FEventIdx | virtio.FIndirectDesc | FCsum | FGuestCsum |
		FMTU | FMAC | FGuestTSO4 | FHostTSO4 | FMrgRxbuf
)

// guest is the driver of a device. It also has the socket of the peer at the other end.
type guest struct {
	t      testing.TB
	mem    *guestmem.Memory
	dev    *Device
	tr     *mmio.Transport
	rx, tx *virtiotest.Ring
	rxLen  uint32                  // length of each receive buffer in bytes
	rxGPA  map[uint16]guestmem.GPA // addresses of the receive buffers, by the index of the first descriptor
	txAt   guestmem.GPA            // address of the next frame
	peer   int                     // socket of the peer; -1 if none
}

func newMem(t testing.TB) *guestmem.Memory {
	t.Helper()
	mem, err := guestmem.New(memSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	return mem
}

// attach returns a guest with a new device, which no driver has started.
func attach(t testing.TB, mem *guestmem.Memory) *guest {
	t.Helper()
	g := &guest{t: t, mem: mem, dev: newDevice(t), rxGPA: map[uint16]guestmem.GPA{}, txAt: txBase, peer: -1}
	var err error
	if g.tr, err = mmio.New(mem, g.dev, &virtiotest.IRQ{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.tr.Close(); err != nil {
			t.Error(err)
		}
		if err := g.dev.Close(); err != nil {
			t.Error(err)
		}
		g.hangUp()
	})
	return g
}

// start returns a guest whose device has a peer, and whose driver has provided n receive buffers.
func start(t testing.TB, features uint64, rxLen uint32, n int) *guest {
	t.Helper()
	g := attach(t, newMem(t))
	g.newPeer()
	g.drive(features, rxLen, n)
	return g
}

func (g *guest) drive(features uint64, rxLen uint32, n int) {
	g.t.Helper()
	virtiotest.Store(g.tr, 0x070, 0) // resets the device, because a driver that starts again clears its rings
	if err := g.mem.WriteAt(make([]byte, txBase-ringBase), ringBase); err != nil {
		g.t.Fatal(err)
	}
	rings := virtiotest.Start(g.t, g.mem, g.tr, features, ringBase, ringSize, ringSize)
	g.rx, g.tx = rings[queueRX], rings[queueTX]
	g.rxLen = rxLen
	for i := range n {
		g.addRX(rxBase + guestmem.GPA(i)*guestmem.GPA(rxLen))
	}
	g.rx.Kick()
}

func (g *guest) addRX(gpa guestmem.GPA) {
	g.t.Helper()
	g.rxGPA[g.rx.Add(virtiotest.Buf{GPA: gpa, Len: g.rxLen, Write: true})] = gpa
}

// hangUp closes the peer.
func (g *guest) hangUp() {
	if g.peer >= 0 {
		_ = unix.Close(g.peer)
		g.peer = -1
	}
}

// newPeer gives the device another peer. The peer's end of the socket is in blocking mode.
func (g *guest) newPeer() {
	g.t.Helper()
	g.hangUp()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fds[0], true)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.peer = fds[1]
	timeout := unix.NsecToTimeval(20e9) // without it, the test would hang if the device never sends
	if err := unix.SetsockoptTimeval(g.peer, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		g.t.Fatal(err)
	}
	if err := g.tr.Exclusive(func() { g.dev.SetPeer(NewPeer(fds[0])) }); err != nil {
		g.t.Fatal(err)
	}
}

// exclusive calls f while no device code runs.
func (g *guest) exclusive(f func(d *Device)) {
	g.t.Helper()
	if err := g.tr.Exclusive(func() { f(g.dev) }); err != nil {
		g.t.Fatal(err)
	}
}

// post puts a frame into the send queue without notifying the device. It splits the frame into
// pieces. The caller passes the lengths of all pieces except the last.
func (g *guest) post(p []byte, pieces ...int) {
	g.t.Helper()
	at := g.txAt
	if g.txAt += guestmem.GPA(len(p)); g.txAt > rxBase {
		at, g.txAt = txBase, txBase+guestmem.GPA(len(p))
	}
	if err := g.mem.WriteAt(p, at); err != nil {
		g.t.Fatal(err)
	}
	var bufs []virtiotest.Buf
	for _, n := range append(pieces, len(p)) {
		n = min(n, len(p))
		bufs = append(bufs, virtiotest.Buf{GPA: at, Len: uint32(n)})
		at, p = at+guestmem.GPA(n), p[n:]
	}
	g.tx.Add(bufs...)
}

// send is like post, and waits until the device has returned the buffer.
func (g *guest) send(p []byte, pieces ...int) {
	g.t.Helper()
	g.post(p, pieces...)
	g.tx.Kick()
	if _, n := g.tx.Wait(); n != 0 {
		g.t.Fatalf("%d bytes written to a frame of the driver", n)
	}
}

// awaken sends a first frame, which makes the device begin to receive.
func (g *guest) awaken() {
	g.t.Helper()
	m := message(header{}, 60)
	g.send(m)
	g.wantAtPeer(m)
}

// wantAtPeer waits for the next message at the peer and compares it with the given message.
func (g *guest) wantAtPeer(want []byte) {
	g.t.Helper()
	got := make([]byte, frame.MaxMessage+1)
	n, err := unix.Read(g.peer, got)
	if err != nil || !bytes.Equal(got[:n], want) {
		g.t.Fatalf("the peer got %d bytes, %v; want %d", n, err, len(want))
	}
}

// fromPeer lets the peer send a message.
func (g *guest) fromPeer(p []byte) {
	g.t.Helper()
	if _, err := unix.Write(g.peer, p); err != nil {
		g.t.Fatal(err)
	}
}

// wantAtGuest waits for the next frame at the driver and compares it with the given frame. The
// driver then returns the buffers to the queue, and notifies the device.
func (g *guest) wantAtGuest(want []byte) {
	g.t.Helper()
	got, buffers := []byte(nil), 1
	for i := 0; i < buffers; i++ {
		head, n := g.rx.Wait()
		part := make([]byte, n)
		if err := g.mem.ReadAt(part, g.rxGPA[head]); err != nil {
			g.t.Fatal(err)
		}
		if i == 0 {
			buffers = int(part[10]) | int(part[11])<<8
			part[10], part[11] = 0, 0
		}
		got = append(got, part...)
		g.addRX(g.rxGPA[head])
	}
	g.rx.Kick()
	if !bytes.Equal(got, want) {
		g.t.Fatalf("the driver got %d bytes in %d buffers, want %d", len(got), buffers, len(want))
	}
}

// message returns h, followed by a frame of n random bytes.
func message(h header, n int) []byte {
	b := h.encode(0)
	p := append(b[:], make([]byte, n)...)
	for i := len(b); i < len(p); i++ {
		p[i] = byte(rand.Uint32())
	}
	return p
}

// segmented is the header of a frame that must be segmented because it is longer than the MTU.
var segmented = header{flags: flagNeedsCsum, gsoType: gsoTCPv4, hdrLen: 54, gsoSize: 1460, csumStart: 34,
	csumOffset: 16}

// newDevice returns a device that is closed at the end of the test.
func newDevice(t testing.TB) *Device {
	t.Helper()
	d, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() }) // fails if the test has closed it
	return d
}
