package vsock

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// A pause waits for at most one packet, however many packets the guest and the host have queued.
func TestHoldIsBounded(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const (
		conns  = 60
		packet = 64 << 10
		slot   = 128 << 10 // number of bytes of guest memory for one packet
		txAt   = 1 << 20
		rxAt   = 16 << 20
	)
	mem, err := guestmem.New(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	h := newHost(t)
	ends := make(chan int, conns)
	h.dev.cfg.Dial = func(uint32) (int, error) {
		ours, theirs := streamPair(t)
		ends <- ours
		return theirs, nil
	}
	var rings [3]*virtiotest.Ring
	var queues []*virtq.Queue
	for i := range rings {
		r := virtiotest.NewRing(t, mem, guestmem.GPA(ringBase+i*0x4000), queueSize, func() {})
		q, err := virtq.New(mem, virtq.Config{Size: queueSize, Desc: r.Desc, Driver: r.Avail, Device: r.Used})
		if err != nil {
			t.Fatal(err)
		}
		rings[i], queues = r, append(queues, q)
	}
	for i := range queueSize {
		rings[queueRX].Add(virtiotest.Buf{GPA: rxAt + guestmem.GPA(i)*slot, Len: headerSize + packet, Write: true})
	}
	send := func(op uint16, data uint32) {
		for i := range conns {
			hd := header{srcCID: guestCID, dstCID: hostCID, srcPort: uint32(1000 + i), dstPort: 1025, kind: typeStream, op: op,
				length: data, bufAlloc: 1 << 20}
			raw := hd.encode()
			at := txAt + guestmem.GPA(i)*slot
			if err := mem.WriteAt(raw[:], at); err != nil {
				t.Fatal(err)
			}
			rings[queueTX].Add(virtiotest.Buf{GPA: at, Len: headerSize + data})
		}
	}
	tr := &virtiotest.Direct{}
	tr.Lock() // keeps the device's own goroutine from running
	defer func() {
		tr.Failed = errors.New("the end of the test")
		h.dev.Reset()
		tr.Unlock()
		_ = h.dev.Close()
	}()
	if err := h.dev.Activate(tr, queues, 0); err != nil {
		t.Fatal(err)
	}
	notify := func() {
		for more := true; more; {
			if more, err = h.dev.Notify(); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(opRequest, 0)
	notify()
	check := func(what string, serve func()) {
		hold := virtiotest.NewHold(t, nil)
		tr.Looked = hold.Look
		serve()
		hold.Look()
		tr.Looked = nil
		t.Logf("vsock  %-28s %v", what, hold)
		if most := uint64(packet + 16<<10); hold.Bytes > most {
			t.Errorf("%s: between two looks at a pause the device moved %d bytes, want at most %d", what, hold.Bytes, most)
		}
	}
	send(opRW, packet)
	check("packets of the guest", notify)
	var events []unix.EpollEvent
	for range conns {
		end := <-ends
		defer unix.Close(end)
		if n, err := unix.Write(end, make([]byte, 2*packet)); err != nil || n != 2*packet {
			t.Fatal(n, err)
		}
	}
	for fd := range h.dev.byFD {
		events = append(events, unix.EpollEvent{Fd: fd, Events: unix.EPOLLIN})
	}
	check("data of hosts", func() {
		if err := h.dev.handle(events); err != nil {
			t.Fatal(err)
		}
	})
	if _, _, ok := rings[queueRX].Poll(); !ok {
		t.Error("nothing has been sent to the guest")
	}
}
