package mmio_test

import (
	"bytes"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

const (
	testFeature = 1 << 5
	ringBase    = 0x10000
	bufAt       = 0x40000
)

// echo is a device with two queues that returns every chain. It treats chains without writable
// bytes as invalid.
type echo struct {
	t      virtio.Transport
	queues []*virtq.Queue
	resets atomic.Int64
	word   uint32
}

func (e *echo) Info() virtio.Info {
	return virtio.Info{ID: 42, Features: testFeature, QueueSizes: []uint16{16, 8}}
}
func (e *echo) ReadConfig(off uint64, p []byte) {
	for i := range p {
		p[i] = byte(off) + byte(i)
	}
}
func (e *echo) Activate(t virtio.Transport, queues []*virtq.Queue, _ uint64) error {
	if queues[0] == nil {
		return errors.New("queue 0 is not set up")
	}
	e.t, e.queues = t, queues
	return nil
}
func (e *echo) Notify() (bool, error) {
	for _, q := range e.queues {
		if q == nil {
			continue
		}
		for {
			c, err := q.Pop()
			if err != nil {
				return false, err
			}
			if c == nil {
				break
			}
			n := c.CopyOut([]byte("echo"))
			if n == 0 {
				return false, errors.New("no room")
			}
			if err := q.Push(c.Head, uint32(n)); err != nil {
				return false, err
			}
		}
		if err := e.t.Interrupt(q); err != nil {
			return false, err
		}
	}
	return false, nil
}
func (e *echo) Reset()               { e.resets.Add(1); e.t, e.queues = nil, nil }
func (e *echo) Save(w *codec.Writer) { w.U32(e.word) }
func (e *echo) Restore(r *codec.Reader) error {
	e.word = r.U32()
	return r.Err()
}

func newTransport(t testing.TB) (*mmio.Transport, *guestmem.Memory, *virtiotest.IRQ, *echo) {
	t.Helper()
	mem, err := guestmem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	irq, dev := &virtiotest.IRQ{}, &echo{word: 7}
	tr, err := mmio.New(mem, dev, irq)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
		mem.Close()
	})
	return tr, mem, irq, dev
}

var load, store = virtiotest.Load, virtiotest.Store

func TestIdentity(t *testing.T) {
	tr, _, _, _ := newTransport(t)
	for off, want := range map[uint64]uint32{0: 0x74726976, 4: 2, 8: 42, 0x10: testFeature | 3<<28, 0x34: 16,
		0xb0: ^uint32(0),
		0x70: 0, 0xfc: 0, 0x100: 0x03020100} {
		if got := load(tr, off); got != want {
			t.Errorf("register %#x = %#x, want %#x", off, got, want)
		}
	}
	store(tr, 0x14, 1)
	if got := load(tr, 0x10); got != 1 {
		t.Errorf("high features %#x", got)
	}
	store(tr, 0x14, 2)
	store(tr, 0x30, 2)
	if load(tr, 0x10) != 0 || load(tr, 0x34) != 0 {
		t.Error("features or queues beyond the end")
	}
	p := []byte{1, 2}
	if tr.Read(0, p); p[0] != 0 || p[1] != 0 {
		t.Error("narrow register access read something")
	}
}

func TestChainsAndInterrupts(t *testing.T) {
	tr, mem, irq, _ := newTransport(t)
	rings := virtiotest.Start(t, mem, tr, virtio.FVersion1|testFeature, ringBase, 16, 8)
	for i, r := range rings {
		r.Add(virtiotest.Buf{GPA: bufAt, Len: 4, Write: true})
		r.Kick()
		if _, n := r.Wait(); n != 4 {
			t.Fatalf("queue %d: %d bytes", i, n)
		}
		virtiotest.Eventually(t, "the interrupt comes", func() bool { return irq.Count() > int64(i) })
		if s := load(tr, 0x60); s != 1 {
			t.Fatalf("interrupt status %d", s)
		}
		if store(tr, 0x64, 1); load(tr, 0x60) != 0 {
			t.Fatal("acknowledged interrupt is still there")
		}
	}
}

func TestFeaturesMustBeOffered(t *testing.T) {
	tr, _, _, _ := newTransport(t)
	for _, features := range []uint64{testFeature, virtio.FVersion1 | 1<<6} {
		for _, s := range []uint32{0, 1, 3} {
			store(tr, 0x70, s)
		}
		for i := range uint32(2) {
			store(tr, 0x24, i)
			store(tr, 0x20, uint32(features>>(32*i)))
		}
		store(tr, 0x70, 11)
		if s := load(tr, 0x70); s != 3 {
			t.Errorf("features %#x: status %#x", features, s)
		}
		store(tr, 0x70, 15)
		if s := load(tr, 0x70); s != 3 {
			t.Errorf("DRIVER_OK without FEATURES_OK: status %#x", s)
		}
	}
	store(tr, 0x70, 0)
	if store(tr, 0x70, 2); load(tr, 0x70) != 0 {
		t.Error("DRIVER without ACKNOWLEDGE")
	}
}

// TestBrokenRulesNeedReset makes the driver violate a rule. After a reset, the device can be used
// again.
func TestBrokenRulesNeedReset(t *testing.T) {
	tr, mem, irq, dev := newTransport(t)
	ring := virtiotest.Start(t, mem, tr, virtio.FVersion1, ringBase, 16)[0]
	ring.Add(virtiotest.Buf{GPA: bufAt, Len: 4})
	ring.Kick()
	virtiotest.Eventually(t, "the device fails", func() bool { return load(tr, 0x70)&64 != 0 })
	virtiotest.Eventually(t, "it says so", func() bool { return load(tr, 0x60)&2 != 0 && irq.Count() > 0 })
	if tr.Err() == nil || dev.resets.Load() == 0 {
		t.Fatal("no reason, or the device was not reset")
	}
	ring.Kick() // ignored
	store(tr, 0x70, 79)
	ring = virtiotest.Start(t, mem, tr, virtio.FVersion1, ringBase+0x8000, 16)[0]
	ring.Add(virtiotest.Buf{GPA: bufAt, Len: 4, Write: true})
	ring.Kick()
	ring.Wait()
	if tr.Err() != nil {
		t.Fatal(tr.Err())
	}
}

func TestBadQueuesNeedReset(t *testing.T) {
	for name, size := range map[string]uint32{"size 0": 0, "not a power of two": 3, "larger than allowed": 32,
		"wide": 1<<16 | 16} {
		tr, _, _, _ := newTransport(t)
		for _, s := range []uint32{1, 3} {
			store(tr, 0x70, s)
		}
		store(tr, 0x24, 1)
		store(tr, 0x20, 1)
		store(tr, 0x70, 11)
		store(tr, 0x38, size)
		store(tr, 0x44, 1)
		store(tr, 0x70, 15)
		if s := load(tr, 0x70); s&64 == 0 {
			t.Errorf("%s: status %#x", name, s)
		}
	}
}

func TestSaveRestore(t *testing.T) {
	tr, mem, _, _ := newTransport(t)
	ring := virtiotest.Start(t, mem, tr, virtio.FVersion1|virtio.FEventIdx, ringBase, 16)[0]
	ring.Add(virtiotest.Buf{GPA: bufAt, Len: 4, Write: true})
	ring.Kick()
	ring.Wait()
	tr.Quiesce()
	ring.Add(virtiotest.Buf{GPA: bufAt, Len: 4, Write: true})
	var w codec.Writer
	tr.Save(&w)
	state := bytes.Clone(w.Bytes())

	irq, dev := &virtiotest.IRQ{}, &echo{}
	child, err := mmio.New(mem, dev, irq)
	if err != nil {
		t.Fatal(err)
	}
	defer child.Close()
	child.Quiesce()
	for n := range state {
		if child.Restore(codec.NewReader(state[:n])) == nil {
			t.Fatalf("%d of %d bytes were accepted", n, len(state))
		}
		if load(child, 0x70) != 0 {
			t.Fatal("a failed restore left something")
		}
	}
	if err := child.Restore(codec.NewReader(state)); err != nil {
		t.Fatal(err)
	}
	var again codec.Writer
	if child.Save(&again); !bytes.Equal(state, again.Bytes()) || dev.word != 7 {
		t.Fatal("saving the restored device gives other bytes")
	}
	if err := child.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	if irq.Count() == 0 {
		t.Fatal("the unacknowledged interrupt was not raised again")
	}
	if _, n := ring.Wait(); n != 4 {
		t.Fatal("the chain without a kick was not served")
	}
	if err := tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
}

func TestCloseWhileQuiesced(t *testing.T) {
	mem, err := guestmem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	tr, err := mmio.New(mem, &echo{}, &virtiotest.IRQ{})
	if err != nil {
		t.Fatal(err)
	}
	virtiotest.Start(t, mem, tr, virtio.FVersion1, ringBase, 16)[0].Kick()
	tr.Quiesce()
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
}

// endless is a device that always has work. It releases the run lock when another goroutine wants
// the lock.
type endless struct {
	echo
	busy atomic.Bool
}

func (e *endless) Notify() (bool, error) {
	for !e.t.Wanted() {
		e.busy.Store(true)
	}
	e.busy.Store(false)
	return true, nil
}

// A busy device stops when the machine is about to be paused. The device also stops when a vCPU
// waits to reset the device, because a pause would wait for that vCPU. If the device did not stop,
// this test would not end.
func TestQuiesceInterruptsABusyDevice(t *testing.T) {
	mem, err := guestmem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	dev := &endless{}
	tr, err := mmio.New(mem, dev, &virtiotest.IRQ{})
	if err != nil {
		t.Fatal(err)
	}
	ring := virtiotest.Start(t, mem, tr, virtio.FVersion1, ringBase, 8)[0]
	ring.Kick()
	for range 100 {
		tr.Quiesce()
		if err := tr.Unquiesce(); err != nil {
			t.Fatal(err)
		}
	}
	for !dev.busy.Load() {
		runtime.Gosched()
	}
	store(tr, 0x70, 0) // resets the device, through the status register
	if status := load(tr, 0x70); status != 0 {
		t.Errorf("status %#x after a reset", status)
	}
	tr.Quiesce()
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
}
