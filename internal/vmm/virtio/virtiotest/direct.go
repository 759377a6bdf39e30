package virtiotest

import (
	"errors"
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// Direct is a transport without registers, whose device the test calls directly. It raises no
// interrupts.
type Direct struct {
	sync.Mutex
	Failed error  // the error passed to Fail
	Paused bool   // result of Wanted
	Looked func() // if set, Wanted first calls Looked
}

// Enter implements virtio.Transport.
func (d *Direct) Enter() bool {
	d.Lock()
	if d.Failed != nil {
		d.Unlock()
		return false
	}
	return true
}

// Leave implements virtio.Transport.
func (d *Direct) Leave() { d.Unlock() }

// Wanted implements virtio.Transport.
func (d *Direct) Wanted() bool {
	if d.Looked != nil {
		d.Looked()
	}
	return d.Paused
}

// Kick implements virtio.Transport. The test calls Notify itself.
func (d *Direct) Kick() {}

// Interrupt implements virtio.Transport.
func (d *Direct) Interrupt(q *virtq.Queue) error {
	_, err := q.NeedsInterrupt()
	return err
}

// Fail implements virtio.Transport.
func (d *Direct) Fail(err error) { d.Failed = err }

// FuzzMemory is the number of bytes of guest memory that the fuzzer's input can fill. The rest of
// the memory is zero.
const FuzzMemory = 1 << 16

// Fuzz activates a device and makes it serve its queues, in a memory that begins with the bytes of
// content. The queues have 8 entries each. The first queue is at address 0, and each further queue
// 512 bytes after the previous one. Within these 512 bytes, the descriptors are at offset 0, the
// available ring at 128, and the used ring at 256. Any result is correct except a panic or an
// endless loop.
func Fuzz(tb testing.TB, mem *guestmem.Memory, dev virtio.Device, content []byte, features uint64) {
	tb.Helper()
	view, err := mem.WriteView(0, FuzzMemory)
	if err != nil {
		tb.Fatal(err)
	}
	clear(view[copy(view, content):])
	var queues []*virtq.Queue
	for i := range dev.Info().QueueSizes {
		base := guestmem.GPA(i) * 512
		q, err := virtq.New(mem, virtq.Config{Size: 8, Desc: base, Driver: base + 128, Device: base + 256,
			EventIdx: features&virtio.FEventIdx != 0, Indirect: true})
		if err != nil {
			tb.Fatal(err)
		}
		queues = append(queues, q)
	}
	var t Direct
	t.Lock()
	defer t.Unlock()
	if err := dev.Activate(&t, queues, features); err != nil {
		tb.Fatal(err)
	}
	for range 4 {
		if _, err := dev.Notify(); err != nil {
			break
		}
	}
	t.Failed = errors.New("stopped") // makes the device's goroutines end
	dev.Reset()
}

// FuzzSeed returns content for Fuzz, with one chain in one queue. The chain has two buffers. The
// readable buffer is at address 0x1000 and contains the bytes of out. The writable buffer is at
// address 0x3000 and has the given length (in).
func FuzzSeed(queue int, out []byte, in uint32) []byte {
	content := make([]byte, 0x1000+len(out))
	ring := content[queue*512:]
	desc := func(i int, gpa, length uint32, flags, next byte) {
		d := ring[16*i:]
		for b := range 4 {
			d[b], d[8+b] = byte(gpa>>(8*b)), byte(length>>(8*b))
		}
		d[12], d[14] = flags, next
	}
	desc(0, 0x1000, uint32(len(out)), 1, 1)
	desc(1, 0x3000, in, 2, 0)
	ring[128+2] = 1
	copy(content[0x1000:], out)
	return content
}
