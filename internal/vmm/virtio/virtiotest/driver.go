// Package virtiotest implements a small driver for tests: the driver side of virtio-mmio and of
// split rings, over the memory that a device uses.
//
// The driver obeys the rules. Tests of hostile drivers write to the memory themselves.
package virtiotest

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
)

// patience is how long tests wait for a device before they fail.
const patience = 20 * time.Second

// IRQ counts interrupts.
type IRQ struct{ n atomic.Int64 }

// Raise implements virtio.Interrupt.
func (i *IRQ) Raise() error { i.n.Add(1); return nil }

// Count returns the number of interrupts.
func (i *IRQ) Count() int64 { return i.n.Load() }

// Buf is one descriptor's buffer.
type Buf struct {
	GPA   guestmem.GPA
	Len   uint32
	Write bool // whether the device writes to the buffer
}

// Ring is the driver side of one queue.
type Ring struct {
	tb    testing.TB
	mem   *guestmem.Memory
	Size  uint16
	Desc  guestmem.GPA
	Avail guestmem.GPA
	Used  guestmem.GPA

	nextDesc, availIdx, usedIdx uint16
	kick                        func()
}

// NewRing returns a ring with size entries at the address base, which must be page-aligned. A call
// of kick must notify the device.
func NewRing(tb testing.TB, mem *guestmem.Memory, base guestmem.GPA, size uint16, kick func()) *Ring {
	n := guestmem.GPA(size)
	avail := base + 16*n
	used := (avail + 6 + 2*n + 3) &^ 3
	return &Ring{tb: tb, mem: mem, Size: size, Desc: base, Avail: avail, Used: used, kick: kick}
}

func (r *Ring) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

// PutDesc writes descriptor i of the table at gpa.
func PutDesc(tb testing.TB, mem *guestmem.Memory, gpa guestmem.GPA, i uint16, b Buf, flags, next uint16) {
	tb.Helper()
	var d [16]byte
	le := binary.LittleEndian
	le.PutUint64(d[0:], uint64(b.GPA))
	le.PutUint32(d[8:], b.Len)
	if b.Write {
		flags |= 2
	}
	le.PutUint16(d[12:], flags)
	le.PutUint16(d[14:], next)
	if err := mem.WriteAt(d[:], gpa+16*guestmem.GPA(i)); err != nil {
		tb.Fatal(err)
	}
}

// Add makes a chain of buffers available, without a kick, and returns the index of the chain's
// first descriptor. It uses the descriptors in rotation, so at most Size descriptors may be in use
// at a time.
func (r *Ring) Add(bufs ...Buf) uint16 {
	r.tb.Helper()
	head := r.nextDesc
	for i, b := range bufs {
		next, flags := (r.nextDesc+1)%r.Size, uint16(0)
		if i < len(bufs)-1 {
			flags = 1
		}
		PutDesc(r.tb, r.mem, r.Desc, r.nextDesc, b, flags, next)
		r.nextDesc = next
	}
	r.Publish(head)
	return head
}

// Publish makes a chain available. The chain begins at the descriptor head.
func (r *Ring) Publish(head uint16) {
	r.tb.Helper()
	r.must(r.mem.StoreUint16(r.Avail+4+2*guestmem.GPA(r.availIdx%r.Size), head))
	r.availIdx++
	r.must(r.mem.StoreUint16(r.Avail+2, r.availIdx))
}

// Kick notifies the device like a driver without event indices.
func (r *Ring) Kick() { r.kick() }

// Poll returns the next used chain, if there is one.
func (r *Ring) Poll() (head uint16, written uint32, ok bool) {
	r.tb.Helper()
	idx, err := r.mem.LoadUint16(r.Used + 2)
	r.must(err)
	if idx == r.usedIdx {
		return 0, 0, false
	}
	var e [8]byte
	r.must(r.mem.ReadAt(e[:], r.Used+4+8*guestmem.GPA(r.usedIdx%r.Size)))
	r.usedIdx++
	return uint16(binary.LittleEndian.Uint32(e[0:])), binary.LittleEndian.Uint32(e[4:]), true
}

// Wait waits for the next used chain and returns it.
func (r *Ring) Wait() (head uint16, written uint32) {
	r.tb.Helper()
	Eventually(r.tb, "the device uses a buffer", func() (ok bool) {
		head, written, ok = r.Poll()
		return ok
	})
	return head, written
}

// SetKick changes how the ring notifies its device.
func (r *Ring) SetKick(kick func()) { r.kick = kick }

// AvailEvent returns the available index at which the device wants the next kick.
func (r *Ring) AvailEvent() uint16 {
	v, err := r.mem.LoadUint16(r.Used + 4 + 8*guestmem.GPA(r.Size))
	r.must(err)
	return v
}

// AvailIdx returns the driver's available index.
func (r *Ring) AvailIdx() uint16 { return r.availIdx }

// Eventually waits until cond returns true.
func Eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			tb.Fatalf("gave up waiting until %s", what)
		}
	}
}

// Registers of virtio-mmio that Start uses (virtio 1.2 §4.2.2).
const (
	regDriverFeatures    = 0x020
	regDriverFeaturesSel = 0x024
	regQueueSel          = 0x030
	regQueueSize         = 0x038
	regQueueReady        = 0x044
	regQueueNotify       = 0x050
	regStatus            = 0x070
	regQueueDesc         = 0x080
	regQueueDriver       = 0x090
	regQueueDevice       = 0x0a0
)

// Store writes a register.
func Store(t *mmio.Transport, off uint64, v uint32) {
	var p [4]byte
	binary.LittleEndian.PutUint32(p[:], v)
	t.Write(off, p[:])
}

// Load reads a register.
func Load(t *mmio.Transport, off uint64) uint32 {
	var p [4]byte
	t.Read(off, p[:])
	return binary.LittleEndian.Uint32(p[:])
}

// Start initializes the device behind t (virtio 1.2 §3.1.1) with queues of the given sizes. Each
// queue takes 16 KiB of memory, beginning at the address base.
func Start(tb testing.TB, mem *guestmem.Memory, t *mmio.Transport, features uint64, base guestmem.GPA,
	sizes ...uint16) []*Ring {
	tb.Helper()
	Store(t, regStatus, 0)
	Store(t, regStatus, 1)
	Store(t, regStatus, 1|2)
	for i := range uint32(2) {
		Store(t, regDriverFeaturesSel, i)
		Store(t, regDriverFeatures, uint32(features>>(32*i)))
	}
	Store(t, regStatus, 1|2|8)
	if s := Load(t, regStatus); s != 1|2|8 {
		tb.Fatalf("status after FEATURES_OK = %#x", s)
	}
	rings := make([]*Ring, len(sizes))
	for i, size := range sizes {
		r := NewRing(tb, mem, base+guestmem.GPA(i)*0x4000, size, func() { Store(t, regQueueNotify, uint32(i)) })
		Store(t, regQueueSel, uint32(i))
		Store(t, regQueueSize, uint32(size))
		for reg, gpa := range map[uint64]guestmem.GPA{
			regQueueDesc: r.Desc, regQueueDriver: r.Avail, regQueueDevice: r.Used} {
			Store(t, reg, uint32(gpa))
			Store(t, reg+4, uint32(gpa>>32))
		}
		Store(t, regQueueReady, 1)
		rings[i] = r
	}
	Store(t, regStatus, 1|2|8|4)
	if s := Load(t, regStatus); s != 1|2|8|4 {
		tb.Fatalf("status after DRIVER_OK = %#x: %v", s, t.Err())
	}
	return rings
}
