package balloon

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

const memoryBytes = 64 << 20

func newMemory(tb testing.TB) *guestmem.Memory {
	tb.Helper()
	mem, err := guestmem.New(memoryBytes)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { mem.Close() })
	return mem
}

// fill writes to all pages of a range of guest memory.
func fill(t *testing.T, mem *guestmem.Memory, gpa guestmem.GPA, n int) {
	t.Helper()
	if err := mem.WriteAt(slices.Repeat([]byte{0xa5}, n), gpa); err != nil {
		t.Fatal(err)
	}
}

// filled reports whether the first byte of a page has the value that fill writes.
func filled(t *testing.T, mem *guestmem.Memory, gpa guestmem.GPA) bool {
	t.Helper()
	var b [1]byte
	if err := mem.ReadAt(b[:], gpa); err != nil {
		t.Fatal(err)
	}
	return b[0] == 0xa5
}

func newTransport(t *testing.T, mem *guestmem.Memory, held *atomic.Bool) *mmio.Transport {
	t.Helper()
	tr, err := mmio.New(mem, New(Config{Release: mem.Release, Held: held.Load}), &virtiotest.IRQ{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// Reported blocks lose their content. Blocks in other queues keep it. While Held returns true, a
// report waits. It also waits in a restored machine.
func TestReportsReleaseMemory(t *testing.T) {
	mem, held := newMemory(t), &atomic.Bool{}
	const at, other, later = 8 << 20, 16 << 20, 24 << 20
	for _, gpa := range []guestmem.GPA{at, at + 4<<20, other, later} {
		fill(t, mem, gpa, 4<<20)
	}
	tr := newTransport(t, mem, held)
	rings := virtiotest.Start(t, mem, tr, virtio.FVersion1|featureReporting, 0x10000, 8, 8, queueSize)
	ask := func(queue int, bufs ...virtiotest.Buf) {
		t.Helper()
		rings[queue].Add(bufs...)
		rings[queue].Kick()
		if _, n := rings[queue].Wait(); n != 0 {
			t.Errorf("queue %d: %d bytes written", queue, n)
		}
	}
	ask(queueReporting, virtiotest.Buf{GPA: at, Len: 4 << 20, Write: true},
		virtiotest.Buf{GPA: at + 4<<20, Len: 2 << 20, Write: true})
	for gpa, want := range map[guestmem.GPA]bool{at: false, at + 4<<20 - 1<<12: false, at + 4<<20: false,
		at + 6<<20: true} {
		if filled(t, mem, gpa) != want {
			t.Errorf("after the report, the page at %#x has its content: %v, want %v", gpa, !want, want)
		}
	}
	fill(t, mem, 0x40000, 4) // a request to inflate contains the number of a page
	ask(queueInflate, virtiotest.Buf{GPA: 0x40000, Len: 4})
	ask(queueDeflate, virtiotest.Buf{GPA: other, Len: 1 << 20, Write: true})
	if !filled(t, mem, other) {
		t.Error("a queue other than that of reports has released memory")
	}

	tr.Quiesce()
	held.Store(true)
	if err := tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	rings[queueReporting].Add(virtiotest.Buf{GPA: later, Len: 1 << 20, Write: true})
	rings[queueReporting].Kick()
	ask0 := func() bool { _, _, ok := rings[queueReporting].Poll(); return ok }
	tr.Quiesce() // afterwards, the device has served the kick, or will not serve it
	if ask0() || !filled(t, mem, later) {
		t.Error("a report was served while content is held")
	}
	var w codec.Writer
	tr.Save(&w)
	child := newTransport(t, mem, &atomic.Bool{})
	child.Quiesce()
	if err := child.Restore(codec.NewReader(w.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := child.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	rings[queueReporting].Wait()
	if filled(t, mem, later) {
		t.Error("the restored device has not served the report")
	}
}

// A pause waits for the release of at most stepBytes, whatever a guest reports.
func TestHoldIsBounded(t *testing.T) {
	mem := newMemory(t)
	ring := virtiotest.NewRing(t, mem, 0x10000, queueSize, func() {})
	q, err := virtq.New(mem, virtq.Config{Size: queueSize, Desc: ring.Desc, Driver: ring.Avail, Device: ring.Used})
	if err != nil {
		t.Fatal(err)
	}
	for range queueSize / 2 {
		ring.Add(virtiotest.Buf{GPA: 1 << 20, Len: 40 << 20, Write: true},
			virtiotest.Buf{GPA: 1 << 20, Len: 3 << 20, Write: true})
	}
	transport, total, held, most := &virtiotest.Direct{}, 0, 0, 0
	transport.Looked = func() { most, held = max(most, held), 0 }
	d := New(Config{Release: func(v []byte) { total, held = total+len(v), held+len(v) },
		Held: func() bool { return false }})
	if err := d.Activate(transport, []*virtq.Queue{nil, nil, q}, featureReporting); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = d.Notify(); err != nil {
			t.Fatal(err)
		}
	}
	transport.Looked()
	if want := queueSize / 2 * 43 << 20; most != stepBytes || total != want {
		t.Errorf("%d of %d bytes were released between two looks at a pause, want %d of %d", most, total, stepBytes, want)
	}

	// A pause ends a release, and the report is still answered.
	ring.Add(virtiotest.Buf{GPA: 1 << 20, Len: 40 << 20, Write: true})
	total = 0
	transport.Looked = func() { transport.Paused = total > 0 }
	if more, err := d.Notify(); err != nil || !more || total != stepBytes {
		t.Errorf("more %v, %d bytes released, %v", more, total, err)
	}
}

func TestReportingNeedsItsQueue(t *testing.T) {
	d := New(Config{})
	if err := d.Activate(&virtiotest.Direct{}, make([]*virtq.Queue, queues), featureReporting); err == nil {
		t.Error("the feature was accepted without its queue")
	}
	if err := d.Activate(&virtiotest.Direct{}, make([]*virtq.Queue, queues), 0); err != nil {
		t.Error(err)
	}
	var w codec.Writer
	w.U32(stateVersion + 1)
	if err := d.Restore(codec.NewReader(w.Bytes())); err == nil {
		t.Error("a state of another version was restored")
	}
	if err := d.Restore(codec.NewReader(nil)); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an empty state: %v", err)
	}
}

// FuzzDevice serves rings with arbitrary content.
func FuzzDevice(f *testing.F) {
	f.Add(virtiotest.FuzzSeed(queueReporting, nil, 1<<30), featureReporting)
	f.Add(virtiotest.FuzzSeed(queueInflate, []byte("page"), 8), ^uint64(0))
	mem, err := guestmem.New(virtiotest.FuzzMemory)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte, features uint64) {
		d := New(Config{Release: mem.Release, Held: func() bool { return false }})
		virtiotest.Fuzz(t, mem, d, content, features)
	})
}
