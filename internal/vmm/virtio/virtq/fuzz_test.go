package virtq

import (
	"testing"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// FuzzQueue uses a queue in memory with arbitrary content. Pop must not panic or loop endlessly.
// The buffers that it returns must have the lengths that the chain states.
func FuzzQueue(f *testing.F) {
	ring := make([]byte, 0x200)
	copy(ring[0x00:], []byte{0, 1, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0}) // desc 0: 16 bytes, next 1
	copy(ring[0x10:], []byte{0, 2, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0})  // desc 1: 8 bytes, write
	copy(ring[0x80:], []byte{0, 0, 1, 0, 0, 0})                                // avail: idx 1, head 0
	f.Add(ring, true, true)
	ring = append([]byte(nil), ring...)
	copy(ring[0x00:], []byte{0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 4, 0, 0, 0}) // indirect into the ring itself
	f.Add(ring, false, true)
	mem, err := guestmem.New(1 << 16)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte, eventIdx, indirect bool) {
		view, err := mem.WriteView(0, 1<<16)
		if err != nil {
			t.Fatal(err)
		}
		clear(view[copy(view, content):])
		q, err := New(mem, Config{Size: 8, Desc: 0, Driver: 0x80, Device: 0x100, EventIdx: eventIdx, Indirect: indirect})
		if err != nil {
			t.Fatal(err)
		}
		for range 64 {
			c, err := q.Pop()
			if err != nil {
				return
			}
			if c == nil {
				if _, err := q.EnableNotify(); err != nil {
					return
				}
				break
			}
			checkChain(t, c)
			if err := q.Push(c.Head, c.WriteLen); err != nil {
				t.Fatal(err)
			}
			if _, err := q.NeedsInterrupt(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func checkChain(t *testing.T, c *Chain) {
	t.Helper()
	var n uint64
	for _, v := range c.Readable {
		n += uint64(len(v))
	}
	if n != uint64(c.ReadLen) || len(c.Readable)+len(c.Writable) > MaxChain {
		t.Fatalf("%d readable bytes in %d views, not %d", n, len(c.Readable), c.ReadLen)
	}
	had := c.WriteLen
	cut := c.CutLast()
	if (cut == nil) != (had == 0) {
		t.Fatalf("status byte %v of %d bytes", cut, had)
	}
	buf := make([]byte, 100)
	left := c.ReadLen
	if k := c.CopyIn(buf); c.ReadLen != left-uint32(k) {
		t.Fatal("CopyIn lost count")
	}
	left = c.WriteLen
	if k := c.CopyOut(buf); c.WriteLen != left-uint32(k) {
		t.Fatal("CopyOut lost count")
	}
}
