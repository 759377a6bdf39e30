package rng

import (
	"testing"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// A pause waits for one request, at most maxFill bytes.
func TestHoldIsBounded(t *testing.T) {
	mem, err := guestmem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	ring := virtiotest.NewRing(t, mem, 0x10000, queueSize, func() {})
	q, err := virtq.New(mem, virtq.Config{Size: queueSize, Desc: ring.Desc, Driver: ring.Avail, Device: ring.Used})
	if err != nil {
		t.Fatal(err)
	}
	for range queueSize {
		ring.Add(virtiotest.Buf{GPA: 0x20000, Len: 1 << 16, Write: true})
	}
	total, most := uint32(0), uint32(0)
	look := func() {
		held := uint32(0)
		for {
			_, n, ok := ring.Poll()
			if !ok {
				break
			}
			held += n
		}
		total, most = total+held, max(most, held)
	}
	d := New()
	if err := d.Activate(&virtiotest.Direct{Looked: look}, []*virtq.Queue{q}, 0); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = d.Notify(); err != nil {
			t.Fatal(err)
		}
	}
	look()
	t.Logf("rng: %d bytes at most between two looks at a pause", most)
	if most != maxFill || total != queueSize*maxFill {
		t.Errorf("%d of %d bytes were filled between two looks at a pause, want %d of %d", most, total, maxFill,
			queueSize*maxFill)
	}
}
