package virtq

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

const (
	size    = 8
	descAt  = 0x1000
	availAt = 0x2000
	usedAt  = 0x3000
	bufAt   = 0x8000
	tableAt = 0x6000
	memSize = 1 << 20
)

// driver writes to a ring directly, because the tests also break the rules of virtio.
type driver struct {
	t   *testing.T
	mem *guestmem.Memory
	q   *Queue
	idx uint16
}

func newDriver(t *testing.T, eventIdx bool) *driver {
	t.Helper()
	mem, err := guestmem.New(memSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	q, err := New(mem, Config{Size: size, Desc: descAt, Driver: availAt, Device: usedAt, EventIdx: eventIdx,
		Indirect: true})
	if err != nil {
		t.Fatal(err)
	}
	return &driver{t: t, mem: mem, q: q}
}

func (d *driver) desc(table guestmem.GPA, i int, gpa guestmem.GPA, length uint32, flags, next uint16) {
	d.t.Helper()
	var b [descSize]byte
	binary.LittleEndian.PutUint64(b[0:], uint64(gpa))
	binary.LittleEndian.PutUint32(b[8:], length)
	binary.LittleEndian.PutUint16(b[12:], flags)
	binary.LittleEndian.PutUint16(b[14:], next)
	if err := d.mem.WriteAt(b[:], table+descSize*guestmem.GPA(i)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *driver) publish(head uint16) {
	d.t.Helper()
	d.store(availAt+4+2*guestmem.GPA(d.idx%size), head)
	d.idx++
	d.store(availAt+2, d.idx)
}

func (d *driver) store(gpa guestmem.GPA, v uint16) {
	d.t.Helper()
	if err := d.mem.StoreUint16(gpa, v); err != nil {
		d.t.Fatal(err)
	}
}

func (d *driver) load(gpa guestmem.GPA) uint16 {
	d.t.Helper()
	v, err := d.mem.LoadUint16(gpa)
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

func (d *driver) pop() *Chain {
	d.t.Helper()
	c, err := d.q.Pop()
	if err != nil || c == nil {
		d.t.Fatalf("Pop = %v, %v", c, err)
	}
	return c
}

func TestChainsDirectAndIndirect(t *testing.T) {
	d := newDriver(t, false)
	d.mem.WriteAt([]byte("abcdefgh"), bufAt)
	d.desc(descAt, 5, bufAt, 3, descNext, 2)
	d.desc(descAt, 2, bufAt+3, 0, descNext, 7)
	d.desc(descAt, 7, bufAt+3, 5, descNext, 1)
	d.desc(descAt, 1, bufAt+100, 4, descWrite, 0)
	d.desc(descAt, 0, tableAt, 3*descSize, descIndirect, 0)
	d.desc(tableAt, 0, bufAt, 8, descNext, 2)
	d.desc(tableAt, 2, bufAt+100, 2, descNext|descWrite, 1)
	d.desc(tableAt, 1, bufAt+102, 2, descWrite, 0)
	for _, head := range []uint16{5, 0} {
		d.publish(head)
		c := d.pop()
		if c.Head != head || c.ReadLen != 8 || c.WriteLen != 4 {
			t.Fatalf("chain %d: %+v", head, c)
		}
		got := make([]byte, 10)
		if n := c.CopyIn(got[:2]); n != 2 {
			t.Fatal(n)
		}
		if n := c.CopyIn(got[2:]); n != 6 || string(got[:8]) != "abcdefgh" || c.ReadLen != 0 {
			t.Fatalf("%d bytes, %q", n, got)
		}
		last := c.CutLast()
		last[0] = 'Z'
		if n := c.CopyOut([]byte("12345")); n != 3 || c.WriteLen != 0 || c.CutLast() != nil {
			t.Fatalf("%d bytes written", n)
		}
		var out [4]byte
		if d.mem.ReadAt(out[:], bufAt+100); string(out[:]) != "123Z" {
			t.Fatalf("%q", out)
		}
		if err := d.q.Push(head, 4); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := d.q.Pop(); c != nil || err != nil {
		t.Fatalf("empty queue: %v, %v", c, err)
	}
	var used [16]byte
	d.mem.ReadAt(used[:], usedAt+4)
	if want := []byte{5, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0}; !bytes.Equal(used[:], want) ||
		d.load(usedAt+2) != 2 {
		t.Fatalf("used ring %v", used)
	}
}

func TestHostileChainsAreErrors(t *testing.T) {
	cases := map[string]struct {
		build func(d *driver)
		want  string
	}{
		"loop": {func(d *driver) {
			d.desc(descAt, 0, bufAt, 1, descNext, 1)
			d.desc(descAt, 1, bufAt, 1, descNext, 0)
		}, "loop"},
		"head":  {func(d *driver) { d.store(availAt+4, size) }, "descriptor 8"},
		"next":  {func(d *driver) { d.desc(descAt, 0, bufAt, 1, descNext, 99) }, "descriptor 99"},
		"range": {func(d *driver) { d.desc(descAt, 0, memSize-1, 2, 0, 0) }, "out of bounds"},
		"wrap":  {func(d *driver) { d.desc(descAt, 0, ^guestmem.GPA(0), 2, descWrite, 0) }, "out of bounds"},
		"order": {func(d *driver) {
			d.desc(descAt, 0, bufAt, 1, descNext|descWrite, 1)
			d.desc(descAt, 1, bufAt, 1, 0, 0)
		}, "readable"},
		"indirect size":   {func(d *driver) { d.desc(descAt, 0, tableAt, 17, descIndirect, 0) }, "indirect"},
		"indirect empty":  {func(d *driver) { d.desc(descAt, 0, tableAt, 0, descIndirect, 0) }, "indirect"},
		"indirect + next": {func(d *driver) { d.desc(descAt, 0, tableAt, 16, descIndirect|descNext, 1) }, "indirect"},
		"indirect twice": {func(d *driver) {
			d.desc(descAt, 0, tableAt, 16, descIndirect, 0)
			d.desc(tableAt, 0, tableAt, 16, descIndirect, 0)
		}, "indirect"},
		"indirect loop": {func(d *driver) {
			d.desc(descAt, 0, tableAt, 0x8000, descIndirect, 0)
			d.desc(tableAt, 0, bufAt, 1, descNext, 0)
		}, "loop"},
		"indirect outside": {func(d *driver) { d.desc(descAt, 0, 1<<40, 16, descIndirect, 0) }, "out of bounds"},
		"ahead":            {func(d *driver) { d.store(availAt+2, size+1) }, "ahead"},
	}
	for name, c := range cases {
		d := newDriver(t, false)
		d.publish(0)
		c.build(d)
		if _, err := d.q.Pop(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// The bytes in a chain are bounded. During a live branch, Pop saves the pages that the device may
// write, and a pause waits until Pop returns.
func TestTotalBytesAreBounded(t *testing.T) {
	d := newDriver(t, false)
	const n = 1 << 12 // number of descriptors in the table; the buffer of each descriptor is the whole memory
	for i := range uint16(MaxChain) {
		d.desc(tableAt+0x10000, int(i), 0, memSize, descNext|descWrite, i+1)
	}
	d.desc(descAt, 0, tableAt+0x10000, n*descSize, descIndirect, 0)
	d.publish(0)
	saved := 0
	d.mem.SetFreezer(func(_ guestmem.GPA, n int) { saved += n })
	if _, err := d.q.Pop(); err == nil {
		t.Fatal("accepted")
	}
	if saved > MaxBytes {
		t.Errorf("%d bytes of memory would have been saved, at most %d are in a chain", saved, MaxBytes)
	}
}

// A device that leaves the buffers of a queue unwritten may have longer chains. Pop saves no pages.
func TestUnwrittenBuffersAreNotSaved(t *testing.T) {
	const memory = 64 << 20
	mem, err := guestmem.New(memory)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	saved := 0
	mem.SetFreezer(func(guestmem.GPA, int) { saved++ })
	for n, ok := range map[uint16]bool{2: true, MaxUnwrittenBytes / memory: true, MaxUnwrittenBytes/memory + 1: false} {
		q, err := New(mem, Config{Size: size, Desc: descAt, Driver: availAt, Device: usedAt, Indirect: true})
		if err != nil {
			t.Fatal(err)
		}
		q.LeaveUnwritten()
		d := &driver{t: t, mem: mem, q: q}
		for i := range n {
			flags := uint16(descNext | descWrite)
			if i == n-1 {
				flags = descWrite
			}
			d.desc(1<<20, int(i), 0, memory, flags, i+1)
		}
		d.desc(descAt, 0, 1<<20, uint32(n)*descSize, descIndirect, 0)
		d.publish(0)
		saved = 0 // the test's own writes
		c, err := q.Pop()
		if saved > 0 || ok != (err == nil) || ok && (len(c.Writable) != int(n) || len(c.Writable[0]) != memory) {
			t.Errorf("%d buffers of %d bytes: saved %d times, %v", n, memory, saved, err)
		}
	}
}

// The number of pages in a chain is also bounded, because even a descriptor of a few bytes may
// touch two pages.
func TestPagesOfAChainAreBounded(t *testing.T) {
	const page, memory = guestmem.PageSize, 40 << 20
	for name, length := range map[string]uint32{"two bytes": 2, "a page and two bytes": page + 2, "nine KiB": 9 << 10,
		"the most": MaxBytes / MaxChain} {
		mem, err := guestmem.New(memory)
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		q, err := New(mem, Config{Size: size, Desc: descAt, Driver: availAt, Device: usedAt, Indirect: true})
		if err != nil {
			t.Fatal(err)
		}
		d := &driver{t: t, mem: mem, q: q}
		n := min(MaxChain, MaxBytes/int(length))
		for i := range uint16(n) {
			stride := guestmem.GPA(length+2*page) &^ (page - 1)
			flags := uint16(descNext | descWrite)
			if int(i) == n-1 {
				flags = descWrite
			}
			d.desc(1<<20, int(i), 2<<20+guestmem.GPA(i)*stride+page-1, length, flags, i+1)
		}
		d.desc(descAt, 0, 1<<20, uint32(n)*descSize, descIndirect, 0)
		d.publish(0)
		pages := make(map[guestmem.GPA]bool)
		mem.SetFreezer(func(gpa guestmem.GPA, n int) {
			if gpa < 2<<20 { // only the pages of the rings
				return
			}
			for at := gpa &^ (page - 1); at < gpa+guestmem.GPA(n); at += page {
				pages[at] = true
			}
		})
		if _, err := q.Pop(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(pages) < n || len(pages) > MaxPages {
			t.Errorf("%s: a chain of %d saves %d pages, want %d to %d", name, n, len(pages), n, MaxPages)
		}
	}
}

func TestUnpopGivesTheChainAgain(t *testing.T) {
	d := newDriver(t, true)
	d.desc(descAt, 3, bufAt, 4, descWrite, 0)
	d.publish(3)
	d.pop().CopyOut([]byte("xy"))
	d.q.Unpop()
	if c := d.pop(); c.Head != 3 || c.WriteLen != 4 {
		t.Fatalf("%+v", c)
	}
}

// TestPushAllPublishesOnce checks that all chains of a PushAll become visible by one store to the
// index, even if the ring wraps.
func TestPushAllPublishesOnce(t *testing.T) {
	d := newDriver(t, false)
	stores := 0
	d.mem.SetFreezer(func(gpa guestmem.GPA, _ int) {
		if gpa == usedAt { // the word with flags and index
			stores++
		}
	})
	for round := range uint32(3) {
		var used []Used
		for i := range uint16(5) {
			d.desc(descAt, int(i), bufAt, 4, descWrite, 0)
			d.publish(i)
			used = append(used, Used{Head: d.pop().Head, Written: round})
		}
		stores = 0
		if err := d.q.PushAll(used); err != nil {
			t.Fatal(err)
		}
		if stores != 1 || d.load(usedAt+2) != uint16(5*(round+1)) {
			t.Fatalf("%d stores to the index, which is %d", stores, d.load(usedAt+2))
		}
		for i := range uint32(5) {
			var e [8]byte
			if err := d.mem.ReadAt(e[:], usedAt+4+8*guestmem.GPA((5*round+i)%size)); err != nil {
				t.Fatal(err)
			}
			if head, n := binary.LittleEndian.Uint32(e[0:]), binary.LittleEndian.Uint32(e[4:]); head != i || n != round {
				t.Fatalf("entry %d of round %d: chain %d, %d bytes", i, round, head, n)
			}
		}
	}
}

// TestInterruptSuppression checks virtio 1.2 §2.7.7.2. It also lets the 16-bit indices wrap.
func TestInterruptSuppression(t *testing.T) {
	needs := func(d *driver) bool {
		t.Helper()
		v, err := d.q.NeedsInterrupt()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	d := newDriver(t, true)
	d.q.usedIdx, d.q.signalled = 0xfffe, 0xfffe
	event := guestmem.GPA(availAt + 4 + 2*size)
	if needs(d) {
		t.Fatal("interrupt without a push")
	}
	for i, c := range []struct {
		event uint16
		want  bool
	}{{0xfffe, true}, {0xfffe, false}, {0, true}, {5, false}, {5, false}, {2, false}} {
		d.store(event, c.event)
		d.q.Push(0, 0)
		if got := needs(d); got != c.want {
			t.Fatalf("push %d with used_event %#x: %v", i, c.event, got)
		}
	}
	d = newDriver(t, false)
	d.q.Push(0, 0)
	if !needs(d) {
		t.Fatal("no interrupt")
	}
	d.store(availAt, availNoInterrupt)
	if d.q.Push(0, 0); needs(d) {
		t.Fatal("interrupt although the driver asked for none")
	}
}

func TestKickSuppression(t *testing.T) {
	d := newDriver(t, true)
	event := guestmem.GPA(usedAt + 4 + 8*size)
	d.publish(0)
	if pending, err := d.q.EnableNotify(); err != nil || !pending || d.load(event) != 0 {
		t.Fatalf("%v, %v", pending, err)
	}
	d.pop()
	if pending, err := d.q.EnableNotify(); err != nil || pending || d.load(event) != 1 {
		t.Fatalf("%v, %v", pending, err)
	}
	if err := d.q.NotifyAfter(9); err != nil || d.load(event) != 9 {
		t.Fatal(err)
	}
	d = newDriver(t, false)
	if err := d.q.DisableNotify(); err != nil || d.load(usedAt) != usedNoNotify {
		t.Fatal(err)
	}
	if _, err := d.q.EnableNotify(); err != nil || d.load(usedAt) != 0 {
		t.Fatal(err)
	}
}

func TestNewChecksAddresses(t *testing.T) {
	d := newDriver(t, false)
	good := Config{Size: size, Desc: descAt, Driver: availAt, Device: usedAt}
	for i, change := range []func(c *Config){
		func(c *Config) { c.Size = 0 },
		func(c *Config) { c.Size = 6 },
		func(c *Config) { c.Desc += 8 },
		func(c *Config) { c.Driver++ },
		func(c *Config) { c.Device += 2 },
		func(c *Config) { c.Desc = memSize - 16 },
		func(c *Config) { c.Driver = memSize - 2 },
		func(c *Config) { c.Device = ^guestmem.GPA(3) },
	} {
		c := good
		change(&c)
		if _, err := New(d.mem, c); err == nil {
			t.Errorf("case %d was accepted", i)
		}
	}
}

func TestSaveRestore(t *testing.T) {
	d := newDriver(t, false)
	d.desc(descAt, 0, bufAt, 1, 0, 0)
	d.publish(0)
	d.publish(0)
	d.q.Push(d.pop().Head, 0)
	var w codec.Writer
	d.q.Save(&w)
	if len(w.Bytes()) != StateSize {
		t.Fatalf("%d bytes", len(w.Bytes()))
	}
	q, err := New(d.mem, d.q.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Restore(codec.NewReader(w.Bytes())); err != nil {
		t.Fatal(err)
	}
	if n, err := q.Pending(); n != 1 || err != nil || q.usedIdx != 1 {
		t.Fatalf("%d pending, %v", n, err)
	}
	if q.Restore(codec.NewReader(w.Bytes()[:3])) == nil {
		t.Fatal("truncated state was accepted")
	}
}
