package rng

import (
	"bytes"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

const bufAt = 0x40000

func newTransport(t *testing.T, mem *guestmem.Memory) *mmio.Transport {
	t.Helper()
	tr, err := mmio.New(mem, New(), &virtiotest.IRQ{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

func TestFillsBuffersAndSurvivesRestore(t *testing.T) {
	mem, err := guestmem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() }) // runs after the transports are closed
	tr := newTransport(t, mem)
	ring := virtiotest.Start(t, mem, tr, virtio.FVersion1, 0x10000, 8)[0]
	ask := func(want uint32, bufs ...virtiotest.Buf) []byte {
		t.Helper()
		ring.Add(bufs...)
		ring.Kick()
		if _, n := ring.Wait(); n != want {
			t.Fatalf("%d bytes, want %d", n, want)
		}
		p := make([]byte, want)
		if err := mem.ReadAt(p, bufAt); err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := ask(64, virtiotest.Buf{GPA: bufAt, Len: 10, Write: true},
		virtiotest.Buf{GPA: bufAt + 10, Len: 54, Write: true})
	ask(maxFill, virtiotest.Buf{GPA: bufAt, Len: 3 * maxFill, Write: true})
	ask(0, virtiotest.Buf{GPA: bufAt, Len: 8}) // no writable buffer

	tr.Quiesce()
	var w codec.Writer
	tr.Save(&w)
	ring.Add(virtiotest.Buf{GPA: bufAt, Len: 64, Write: true}) // the device is not notified
	child := newTransport(t, mem)
	child.Quiesce()
	if err := child.Restore(codec.NewReader(w.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := child.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	if _, n := ring.Wait(); n != 64 {
		t.Fatalf("%d bytes after restore", n)
	}
	second := make([]byte, 64)
	if err := mem.ReadAt(second, bufAt); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first, second) || bytes.Equal(second, make([]byte, 64)) {
		t.Fatal("not random")
	}
}
