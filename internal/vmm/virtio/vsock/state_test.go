package vsock

import (
	"bufio"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// fork saves the device of g, stops g's driver, and restores a device that does not run yet. It
// also returns a host client (waiting) that waits for the child's port 77.
func fork(t *testing.T, mem *guestmem.Memory, g *guest) (child *host, k *guest, waiting net.Conn) {
	t.Helper()
	g.tr.Quiesce()
	var w codec.Writer
	g.tr.Save(&w)
	child = newHost(t)
	k = attach(t, child, mem)
	k.rx, k.tx, k.event, k.rxGPA = rekick(g.rx, k), rekick(g.tx, k), rekick(g.event, k), g.rxGPA
	waiting = child.connect(t, 77)
	k.tr.Quiesce()
	if err := k.tr.Restore(codec.NewReader(w.Bytes())); err != nil {
		t.Fatal(err)
	}
	return child, k, waiting
}

// TestRestoreResetsAndHolds forks a device that has a connection. The child sends a transport
// reset, and clients wait until the driver has returned the buffer of the event.
func TestRestoreResetsAndHolds(t *testing.T) {
	mem := newMem(t)
	parent := newHost(t)
	g := start(t, parent, mem)
	req, _ := g.open(parent.connect(t, 1), 1)
	child, k, waiting := fork(t, mem, g)
	k.post(header{srcPort: 50, dstPort: 1025, op: opRequest, bufAlloc: 4096}, nil)
	if err := k.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	head, n := k.event.Wait()
	if n != 4 {
		t.Fatalf("event of %d bytes", n)
	}
	if k.event.AvailEvent() != k.event.AvailIdx() {
		t.Fatalf("the device waits for available index %d, not %d", k.event.AvailEvent(), k.event.AvailIdx())
	}
	k.serveAgain(3) // has no effect
	k.tr.Quiesce()
	if _, _, ok := k.tx.Poll(); ok || child.dev.listening {
		t.Fatal("the device did not wait for the driver")
	}
	checkGrandchild(t, child.dev, k.event.AvailIdx()+1)
	if err := k.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	k.event.Add(virtiotest.Buf{GPA: evBase + guestmem.GPA(head)*16, Len: 4, Write: true})
	k.event.Kick()
	k.tx.Wait()
	ops := map[uint16]bool{}
	for len(ops) < 2 {
		h, _ := k.next()
		ops[h.op] = true
		if h.op == opRequest {
			req = h
		}
	}
	if !ops[opResponse] || !ops[opRequest] {
		t.Fatalf("operations %v", ops)
	}
	_ = unix.Close(<-child.dials)
	k.send(reply(req, opResponse), nil)
	if line, err := bufio.NewReader(waiting).ReadString('\n'); err != nil || line[:3] != "OK " {
		t.Fatalf("%q, %v", line, err)
	}
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
}

// checkGrandchild makes a snapshot of a child whose driver has not handled the reset yet. A child
// of that snapshot must wait for both resets.
func checkGrandchild(t *testing.T, child *Device, holdUntil uint16) {
	t.Helper()
	var held codec.Writer
	child.Save(&held)
	grandchild := &Device{cfg: Config{GuestCID: guestCID}}
	if err := grandchild.Restore(codec.NewReader(held.Bytes())); err != nil {
		t.Fatal(err)
	}
	if !grandchild.resetDue || !grandchild.holding || grandchild.holdUntil != holdUntil {
		t.Fatalf("restored: %v, %v, %d", grandchild.resetDue, grandchild.holding, grandchild.holdUntil)
	}
}

// TestNoConnectionsNoReset forks a device without connections. Clients of the child need not wait
// for a reset.
func TestNoConnectionsNoReset(t *testing.T) {
	mem := newMem(t)
	g := start(t, newHost(t), mem)
	_, k, waiting := fork(t, mem, g)
	if err := k.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	req, _ := k.next()
	if req.op != opRequest {
		t.Fatalf("operation %d", req.op)
	}
	if _, _, sent := k.event.Poll(); sent {
		t.Error("the device sent an event")
	}
	k.send(reply(req, opResponse), nil)
	if line, err := bufio.NewReader(waiting).ReadString('\n'); err != nil || line[:3] != "OK " {
		t.Fatalf("%q, %v", line, err)
	}
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
}

// A restored device must send a reset if an RST to the guest was pending, or if the snapshot does
// not say whether there were connections.
func TestARestoreThatMustReset(t *testing.T) {
	parent := &Device{cfg: Config{GuestCID: guestCID}, orphans: []header{{op: opRST}}}
	var w, first codec.Writer
	parent.Save(&w)
	first.U32(1)
	first.U32(guestCID)
	first.Bool(false)
	first.U16(0)
	for name, state := range map[string][]byte{"with an RST due": w.Bytes(), "of version 1": first.Bytes()} {
		child := &Device{cfg: Config{GuestCID: guestCID}}
		if err := child.Restore(codec.NewReader(state)); err != nil || !child.resetDue {
			t.Errorf("a state %s: reset due %v, %v", name, child.resetDue, err)
		}
	}
}

// serveAgain makes the device check its queues n times.
func (g *guest) serveAgain(n int) {
	g.t.Helper()
	for range n {
		g.tr.Quiesce()
		if err := g.tr.Unquiesce(); err != nil {
			g.t.Fatal(err)
		}
	}
}

// rekick returns a copy of r whose notifications go to k's device.
func rekick(r *virtiotest.Ring, k *guest) *virtiotest.Ring {
	c := *r
	c.SetKick(func() { virtiotest.Store(k.tr, mmio.RegQueueNotify, 0) })
	return &c
}

func TestResumeInPlaceKeepsConnections(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	c := h.connect(t, 1)
	req, r := g.open(c, 1)
	g.tr.Quiesce()
	io.WriteString(c, "while paused")
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	if h, data := g.next(); h.op != opRW || string(data) != "while paused" {
		t.Fatalf("operation %d, %q", h.op, data)
	}
	g.send(reply(req, opRW), []byte("on\n"))
	if line, err := r.ReadString('\n'); err != nil || line != "on\n" {
		t.Fatalf("%q, %v", line, err)
	}
}
