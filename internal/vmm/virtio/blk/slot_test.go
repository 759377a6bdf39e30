package blk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// startSlot returns a started slot without a disk.
func startSlot(t *testing.T) (*guest, *Device) {
	t.Helper()
	mem, err := guestmem.New(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, mem: mem, irq: &virtiotest.IRQ{}}
	d := NewSlot("vol0", func() { t.Error("the host is full") })
	if g.tr, err = mmio.New(mem, d, g.irq); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.tr.Close(); mem.Close() })
	g.ring = virtiotest.Start(t, mem, g.tr, virtio.FVersion1|FFlush, ringBase, slotQueueSize)[0]
	return g, d
}

// put replaces the disk of a slot, as the machine does while the guest runs. At the end of the
// test, it empties the slot.
func (g *guest) put(d *Device, disk *Overlay) {
	g.t.Helper()
	g.t.Cleanup(func() {
		_ = g.tr.Exclusive(func() { _ = d.SetDisk(nil) })
	})
	var set error
	err := g.tr.Exclusive(func() { set = d.SetDisk(disk) })
	if err := errors.Join(err, set, g.tr.ConfigChanged()); err != nil {
		g.t.Fatal(err)
	}
}

// capacity returns the capacity in the configuration space, in bytes, and the generation of the
// configuration.
func (g *guest) capacity() (bytes uint64, generation uint32) {
	const generationAt, configAt = 0xfc, 0x100
	var p [8]byte
	g.tr.Read(configAt, p[:])
	var q [4]byte
	g.tr.Read(generationAt, q[:])
	return binary.LittleEndian.Uint64(p[:]) * sectorSize, binary.LittleEndian.Uint32(q[:])
}

func TestEmptySlotHasNoSectors(t *testing.T) {
	g, d := startSlot(t)
	if size, _ := g.capacity(); size != 0 || !d.Empty() {
		t.Errorf("an empty slot has %d bytes", size)
	}
	if s, data := g.request(typeGetID, 0, nil, 20); s != statusOK || string(bytes.TrimRight(data, "\x00")) != "vol0" {
		t.Errorf("get id: status %d, %q", s, data)
	}
	segment := make([]byte, segmentSize)
	for name, r := range map[string]struct {
		kind uint32
		out  []byte
		in   uint32
	}{
		"read": {typeIn, nil, 512}, "read nothing": {typeIn, nil, 0}, "write": {typeOut, make([]byte, 512), 0},
		"write nothing": {typeOut, nil, 0}, "flush": {typeFlush, nil, 0}, "discard": {typeDiscard, segment, 0},
		"write zeroes": {typeWriteZeroes, segment, 0}, "unknown": {99, nil, 0},
	} {
		if s, _ := g.request(r.kind, 0, r.out, r.in); s != statusIOErr {
			t.Errorf("%s: status %d, want %d", name, s, statusIOErr)
		}
	}
	if d.SwapTop(nil, nil) == nil || d.Merge(0, nil) == nil {
		t.Error("an empty slot has layers")
	}
}

// A running guest learns the slot's new size, and uses the new disk.
func TestDiskOfASlotIsReplaced(t *testing.T) {
	g, d := startSlot(t)
	_, before := g.capacity()
	first := newDisk(t, 64*cluster, bytes.Repeat([]byte("base"), 1024))
	for _, c := range []struct {
		disk *Overlay
		size uint64
	}{{first, 64 * cluster}, {newDisk(t, 8*cluster, nil), 8 * cluster}, {nil, 0},
		{newDisk(t, 16*cluster, nil), 16 * cluster}} {
		interrupts := g.irq.Count()
		g.tr.InterruptStatus().Store(0)
		g.put(d, c.disk)
		size, now := g.capacity()
		if size != c.size || now == before || g.irq.Count() == interrupts || g.tr.InterruptStatus().Load() != 2 {
			t.Errorf("a disk of %d bytes: capacity %d, generation %d after %d, %d interrupts after %d, status %d", c.size, size,
				now, before, g.irq.Count(), interrupts, g.tr.InterruptStatus().Load())
		}
		before = now
		want := byte(statusOK)
		if c.disk == nil {
			want = statusIOErr
		}
		if s, _ := g.request(typeOut, 0, bytes.Repeat([]byte{7}, 512), 0); s != want {
			t.Errorf("a disk of %d bytes: write: status %d", c.size, s)
		}
		if s, data := g.request(typeIn, 0, nil, 512); s != want || c.disk != nil && data[0] != 7 {
			t.Errorf("a disk of %d bytes: read: status %d", c.size, s)
		}
		if s, _ := g.request(typeIn, c.size/sectorSize, nil, 512); s != statusIOErr {
			t.Errorf("a read beyond the disk: status %d", s)
		}
	}
	if first.base != nil {
		t.Error("the first disk is still open")
	}
}

// A driver that is not ready gets no interrupt.
func TestSlotWithoutADriver(t *testing.T) {
	irq := &virtiotest.IRQ{}
	mem, err := guestmem.New(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	d := NewSlot("vol0", func() {})
	tr, err := mmio.New(mem, d, irq)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close(); mem.Close() })
	g := &guest{t: t, mem: mem, irq: irq, tr: tr}
	g.put(d, newDisk(t, 8*cluster, nil))
	if size, generation := g.capacity(); size != 8*cluster || generation != 1 || irq.Count() != 0 {
		t.Errorf("capacity %d, generation %d, %d interrupts", size, generation, irq.Count())
	}
}

// A disk that is not in a slot keeps its size.
func TestOnlySlotsChangeTheirSize(t *testing.T) {
	d := New(newDisk(t, 8*cluster, nil), "disk0", func() {})
	other := newDisk(t, 16*cluster, nil)
	if d.SetDisk(other) == nil || d.SetDisk(nil) == nil || d.Empty() {
		t.Error("the disk was replaced by one of another size, or by none")
	}
}

// A slot can be restored with any disk, and reports whether the guest knows another size.
func TestSlotIsRestoredWithAnotherDisk(t *testing.T) {
	state := func(d *Device) []byte {
		var w codec.Writer
		d.Save(&w)
		return w.Bytes()
	}
	slot := func(disk *Overlay) *Device {
		d := NewSlot("vol0", func() {})
		if err := d.SetDisk(disk); err != nil {
			t.Fatal(err)
		}
		return d
	}
	empty, small, large := slot(nil), slot(newDisk(t, 8*cluster, nil)), slot(newDisk(t, 16*cluster, nil))
	for _, from := range []*Device{empty, small, large} {
		for _, to := range []*Device{empty, small, large} {
			if err := to.Restore(codec.NewReader(state(from))); err != nil || to.Changed() != (from != to) {
				t.Errorf("%d bytes restored with %d: %v, changed %v", from.size(), to.size(), err, to.Changed())
			}
		}
	}
	disk := New(newDisk(t, 8*cluster, nil), "disk0", func() {})
	if err := disk.Restore(codec.NewReader(state(large))); err == nil {
		t.Error("a disk that is not in a slot was restored with another size")
	}
	for cut := range state(small) {
		if err := small.Restore(codec.NewReader(state(small)[:cut])); err == nil {
			t.Errorf("a state of %d bytes was restored", cut)
		}
	}
}

// A flush is answered when the sync has ended. A pause does not wait for the sync, and a branch in
// between makes the flush sync the frozen layer too.
func TestFlushOfASlotWaitsForTheSync(t *testing.T) {
	g, d := startSlot(t)
	type run struct {
		files []*os.File
		end   chan error
	}
	begun := make(chan run)
	d.sync = func(files []*os.File) error {
		r := run{files, make(chan error)}
		begun <- r
		return <-r.end
	}
	g.put(d, newDisk(t, 8*cluster, nil))
	top := d.disk.top.File()
	flush := func() {
		g.submit(typeFlush, 0, nil, 0)
		g.ring.Kick()
	}
	for _, c := range []struct {
		err    error
		status byte
	}{{nil, statusOK}, {errors.New("disk is gone"), statusIOErr}, {os.ErrClosed, statusIOErr}} {
		flush()
		r := <-begun
		if len(r.files) != 1 || r.files[0] != top {
			t.Fatalf("the files %v are synced", r.files)
		}
		g.tr.Quiesce() // would wait for ever if the device waited for the sync
		if err := g.tr.Unquiesce(); err != nil {
			t.Fatal(err)
		}
		r.end <- c.err
		if s, _ := g.complete(nil, 0); s != c.status {
			t.Errorf("%v: status %d, want %d", c.err, s, c.status)
		}
	}
	flush()
	old := <-begun
	g.tr.Quiesce()
	frozen := forReading(t, d.disk.top)
	newest := newTop(t, t.TempDir(), 8*cluster)
	if err := d.SwapTop(newest, frozen); err != nil {
		t.Fatal(err)
	}
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	old.end <- os.ErrClosed // the layer was replaced before its sync began
	r := <-begun
	if len(r.files) != 2 || r.files[0] != frozen || r.files[1] != newest {
		t.Errorf("after a branch the files %v are synced", r.files)
	}
	r.end <- nil
	if s, _ := g.complete(nil, 0); s != statusOK {
		t.Errorf("after a branch: status %d", s)
	}
	flush()
	if r = <-begun; len(r.files) != 1 || r.files[0] != newest {
		t.Errorf("after the sync the files %v are synced again", r.files)
	}
	r.end <- nil
	if s, _ := g.complete(nil, 0); s != statusOK {
		t.Errorf("status %d", s)
	}
}

// A driver that resets its device again and again has at most one sync in progress.
func TestResetsStartNoFurtherSyncs(t *testing.T) {
	g, d := startSlot(t)
	end, running := make(chan struct{}), make(chan struct{}, 100)
	d.sync = func([]*os.File) error {
		running <- struct{}{}
		<-end
		return nil
	}
	g.put(d, newDisk(t, 8*cluster, nil))
	for i := range guestmem.GPA(10) {
		base := ringBase + i*guestmem.PageSize // memory that is still zero
		g.ring = virtiotest.Start(t, g.mem, g.tr, virtio.FVersion1|FFlush, base, slotQueueSize)[0]
		g.submit(typeFlush, 0, nil, 0)
		g.ring.Kick()
		g.tr.Quiesce() // the device has seen the request, or sees it after Unquiesce
		if err := g.tr.Unquiesce(); err != nil {
			t.Fatal(err)
		}
	}
	<-running
	close(end)
	if s, _ := g.complete(nil, 0); s != statusOK {
		t.Errorf("status %d", s)
	}
	if n := len(running); n > 1 { // the last request may have needed a second sync
		t.Errorf("%d further syncs", n)
	}
}

// A flush syncs real files: the top, and layers that have been made of earlier tops.
func TestFlushOfASlotSyncsTheFiles(t *testing.T) {
	g, d := startSlot(t)
	g.put(d, newDisk(t, 8*cluster, nil))
	quiet := func(do func() error) {
		t.Helper()
		g.tr.Quiesce()
		err := do()
		if err := errors.Join(err, g.tr.Unquiesce()); err != nil {
			t.Fatal(err)
		}
	}
	unsynced := func(want int) {
		t.Helper()
		quiet(func() error {
			if n := len(d.unsynced()); n != want {
				t.Errorf("%d files are to be synced, want %d", n, want)
			}
			return nil
		})
	}
	branch := func() {
		t.Helper()
		if s, _ := g.request(typeOut, 0, bytes.Repeat([]byte{7}, 512), 0); s != statusOK {
			t.Fatalf("write: status %d", s)
		}
		quiet(func() error { return d.SwapTop(newTop(t, t.TempDir(), 8*cluster), forReading(t, d.disk.top)) })
	}
	merge := func(first int) {
		t.Helper()
		quiet(func() error { return d.Merge(first, mergedFrom(t, layerFiles(d.disk)[first:len(d.disk.layers)-1])) })
	}
	flush := func() {
		t.Helper()
		if s, _ := g.request(typeFlush, 0, nil, 0); s != statusOK {
			t.Fatalf("flush: status %d", s)
		}
		unsynced(1)
	}
	unsynced(1)
	branch()
	branch()
	unsynced(3)
	flush()
	branch()
	branch()
	merge(1) // merges a layer that is synced, and two that are not
	unsynced(2)
	branch()
	merge(2) // merges only the latest layer
	unsynced(3)
	flush()
	merge(0)
	unsynced(2)
	flush()
}

// Linux reports the error of a file only once. So if a reset or a branch has replaced a sync, the
// next flush reports the error of the replaced sync. If the slot has another disk by then, no flush
// reports the error.
func TestErrorsOfReplacedSyncsAreReported(t *testing.T) {
	g, d := startSlot(t)
	begun, end := make(chan bool), make(chan error)
	d.sync = func([]*os.File) error {
		begun <- true
		return <-end
	}
	g.put(d, newDisk(t, 8*cluster, nil))
	base := guestmem.GPA(ringBase)
	reset := func() {
		base += guestmem.PageSize // memory that is still zero
		g.ring = virtiotest.Start(t, g.mem, g.tr, virtio.FVersion1|FFlush, base, slotQueueSize)[0]
	}
	swap := func() {
		g.tr.Quiesce()
		err := d.SwapTop(newTop(t, t.TempDir(), 8*cluster), forReading(t, d.disk.top))
		if err := errors.Join(err, g.tr.Unquiesce()); err != nil {
			t.Fatal(err)
		}
	}
	flush := func() {
		g.submit(typeFlush, 0, nil, 0)
		g.ring.Kick()
	}
	for _, c := range []struct {
		name   string
		change func()
		again  bool // whether the driver sends its request again, because it has forgotten the first one
		status byte
	}{{"reset", reset, true, statusIOErr}, {"branch", swap, false, statusIOErr},
		{"another disk", func() { g.put(d, newDisk(t, 8*cluster, nil)) }, false, statusOK}} {
		flush()
		<-begun
		c.change()
		if c.again {
			flush()
		}
		end <- errors.New("disk is gone")
		<-begun // the sync that replaces the failed one
		end <- nil
		if s, _ := g.complete(nil, 0); s != c.status {
			t.Errorf("%s: status %d, want %d", c.name, s, c.status)
		}
		flush()
		<-begun
		end <- nil
		if s, _ := g.complete(nil, 0); s != statusOK {
			t.Errorf("%s: the error is reported twice: status %d", c.name, s)
		}
	}
}
