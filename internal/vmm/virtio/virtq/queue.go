// Package virtq implements the device side of a split virtqueue (virtio 1.2 §2.7) over guest
// memory, with event indices and indirect descriptors.
//
// It trusts nothing in a ring. It checks each address, bounds the descriptors and bytes of a chain
// (so that a loop ends), and reads the guest's values only once. If the driver breaks a rule, the
// package returns an error and never panics. The transport answers the error with
// DEVICE_NEEDS_RESET. The package sends no notifications. It has no locks, because callers hold the
// device's run lock. It depends neither on devices nor on registers.
package virtq

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// MaxSize is the largest queue size (virtio 1.2 §2.7).
const MaxSize = 32768

// Ring flags (virtio 1.2 §2.7.6, §2.7.8).
const (
	availNoInterrupt = 1 // VIRTQ_AVAIL_F_NO_INTERRUPT
	usedNoNotify     = 1 // VIRTQ_USED_F_NO_NOTIFY
)

// Config is a driver's configuration of a queue: its addresses, and the negotiated features of its
// rings.
type Config struct {
	Size     uint16       // entries, a power of two
	Desc     guestmem.GPA // descriptor table
	Driver   guestmem.GPA // available ring
	Device   guestmem.GPA // used ring
	EventIdx bool         // VIRTIO_F_EVENT_IDX
	Indirect bool         // VIRTIO_F_INDIRECT_DESC
}

// Queue is one virtqueue.
type Queue struct {
	mem *guestmem.Memory
	cfg Config

	lastAvail uint16 // number of chains taken from the available ring, modulo 1<<16
	usedIdx   uint16 // number of entries written to the used ring, modulo 1<<16
	signalled uint16 // usedIdx at the latest notification of the driver

	unwritten bool // see LeaveUnwritten

	chain Chain // result of the latest Pop, whose storage is reused
}

// New returns a queue. It checks that the descriptor table and the two rings are aligned and in
// guest memory, but does not read them.
func New(mem *guestmem.Memory, cfg Config) (*Queue, error) {
	if cfg.Size == 0 || cfg.Size > MaxSize || cfg.Size&(cfg.Size-1) != 0 {
		return nil, fmt.Errorf("virtqueue size %d: want a power of two up to %d", cfg.Size, MaxSize)
	}
	n := int(cfg.Size)
	parts := [...]struct {
		name  string
		gpa   guestmem.GPA
		align guestmem.GPA
		size  int
	}{
		{"descriptor table", cfg.Desc, 16, 16 * n},
		{"available ring", cfg.Driver, 2, 6 + 2*n},
		{"used ring", cfg.Device, 4, 6 + 8*n},
	}
	for _, p := range parts {
		if p.gpa%p.align != 0 {
			return nil, fmt.Errorf("virtqueue %s at %#x: not aligned to %d", p.name, uint64(p.gpa), p.align)
		}
		if _, err := mem.ReadView(p.gpa, p.size); err != nil {
			return nil, fmt.Errorf("virtqueue %s: %w", p.name, err)
		}
	}
	return &Queue{mem: mem, cfg: cfg}, nil
}

// Size returns the number of entries.
func (q *Queue) Size() int { return int(q.cfg.Size) }

func (q *Queue) availIdx() guestmem.GPA   { return q.cfg.Driver + 2 }
func (q *Queue) usedEvent() guestmem.GPA  { return q.cfg.Driver + 4 + 2*guestmem.GPA(q.cfg.Size) }
func (q *Queue) availEvent() guestmem.GPA { return q.cfg.Device + 4 + 8*guestmem.GPA(q.cfg.Size) }

// Pending returns the number of chains that the driver has made available and that Pop has not
// taken yet.
func (q *Queue) Pending() (int, error) {
	idx, err := q.mem.LoadUint16(q.availIdx())
	if err != nil {
		return 0, fmt.Errorf("read available index: %w", err)
	}
	n := idx - q.lastAvail
	if n > q.cfg.Size {
		return 0, fmt.Errorf("available index %d is %d ahead in a queue of %d", idx, n, q.cfg.Size)
	}
	return int(n), nil
}

// AvailIdx returns how many chains the driver has made available so far, modulo 1<<16.
func (q *Queue) AvailIdx() (uint16, error) { return q.mem.LoadUint16(q.availIdx()) }

// Pop takes the next available chain, or returns nil if there is none. The chain and its views are
// valid until the next Pop.
func (q *Queue) Pop() (*Chain, error) {
	n, err := q.Pending()
	if err != nil || n == 0 {
		return nil, err
	}
	slot := guestmem.GPA(q.lastAvail % q.cfg.Size)
	head, err := q.mem.LoadUint16(q.cfg.Driver + 4 + 2*slot)
	if err != nil {
		return nil, fmt.Errorf("read available ring: %w", err)
	}
	if err := q.walk(head); err != nil {
		return nil, fmt.Errorf("descriptor chain %d: %w", head, err)
	}
	q.lastAvail++
	return &q.chain, nil
}

// Unpop puts back the chain that the last Pop returned. Each further call puts back the chain
// before that. Push must not be called between the Pop and the Unpop.
func (q *Queue) Unpop() { q.lastAvail-- }

// Used is a chain that the device returns to the driver, with the number of bytes that the device
// has written.
type Used struct {
	Head    uint16
	Written uint32
}

// Push returns a chain to the driver, and tells it how many bytes the device has written to the
// chain (written). The chain begins at the descriptor head.
func (q *Queue) Push(head uint16, written uint32) error {
	if err := q.putUsed(q.usedIdx, Used{head, written}); err != nil {
		return err
	}
	return q.publish(1)
}

// PushAll returns several chains to the driver at once. The driver sees all of them or none.
func (q *Queue) PushAll(used []Used) error {
	for i, u := range used {
		if err := q.putUsed(q.usedIdx+uint16(i), u); err != nil {
			return err
		}
	}
	return q.publish(uint16(len(used)))
}

// putUsed writes an entry of the used ring. The driver does not read the entry before publish makes
// it visible.
func (q *Queue) putUsed(idx uint16, u Used) error {
	var elem [8]byte
	binary.LittleEndian.PutUint32(elem[0:], uint32(u.Head))
	binary.LittleEndian.PutUint32(elem[4:], u.Written)
	slot := guestmem.GPA(idx % q.cfg.Size)
	if err := q.mem.WriteAt(elem[:], q.cfg.Device+4+8*slot); err != nil {
		return fmt.Errorf("write used ring: %w", err)
	}
	return nil
}

// publish makes the next n entries of the used ring visible to the driver.
func (q *Queue) publish(n uint16) error {
	q.usedIdx += n
	if err := q.mem.StoreUint16(q.cfg.Device+2, q.usedIdx); err != nil {
		return fmt.Errorf("write used index: %w", err)
	}
	return nil
}

// NeedsInterrupt reports whether the driver wants to be notified of the chains that were pushed
// since the last notification. If it returns true, the chains count as notified, and the caller
// must raise the interrupt (virtio 1.2 §2.7.7.2).
func (q *Queue) NeedsInterrupt() (bool, error) {
	old := q.signalled
	if q.signalled = q.usedIdx; old == q.usedIdx {
		return false, nil
	}
	if !q.cfg.EventIdx {
		flags, err := q.mem.LoadUint16(q.cfg.Driver)
		return flags&availNoInterrupt == 0, err
	}
	event, err := q.mem.LoadUint16(q.usedEvent())
	return q.usedIdx-event-1 < q.usedIdx-old, err
}

// EnableNotify asks the driver to kick when the driver adds the next chain. It reports whether a
// chain that Pop has not taken is already available. For that chain there will be no kick, so the
// caller must call Pop again.
func (q *Queue) EnableNotify() (pending bool, err error) {
	// Write only if needed, because a write would copy a page of each idle queue in every forked
	// sandbox.
	if at, v := q.kickWord(); !q.says(at, v) {
		if err := q.mem.StoreUint16(at, v); err != nil {
			return false, fmt.Errorf("enable kicks: %w", err)
		}
	}
	n, err := q.Pending()
	return n != 0, err
}

// Idle reports whether Pop has taken every chain and the driver will kick for the next chain.
func (q *Queue) Idle() bool {
	n, err := q.Pending()
	return err == nil && n == 0 && q.says(q.kickWord())
}

// kickWord returns the address and the value of the word that asks the driver to kick for the next
// chain.
func (q *Queue) kickWord() (guestmem.GPA, uint16) {
	if q.cfg.EventIdx {
		return q.availEvent(), q.lastAvail
	}
	return q.cfg.Device, 0
}

func (q *Queue) says(at guestmem.GPA, v uint16) bool {
	have, err := q.mem.LoadUint16(at)
	return err == nil && have == v
}

// NotifyAfter asks the driver to kick when the driver adds a chain after the available index idx.
// Chains before that index may stay in the queue without a kick.
func (q *Queue) NotifyAfter(idx uint16) error {
	if q.cfg.EventIdx {
		return q.mem.StoreUint16(q.availEvent(), idx)
	}
	return q.mem.StoreUint16(q.cfg.Device, 0)
}

// DisableNotify asks the driver not to kick. With event indices it does nothing, because each
// EnableNotify then causes only one kick.
func (q *Queue) DisableNotify() error {
	if q.cfg.EventIdx {
		return nil
	}
	return q.mem.StoreUint16(q.cfg.Device, usedNoNotify)
}

// StateSize is the number of bytes that Save appends.
const StateSize = 4

// Save appends the ring indices. The transport saves the addresses of the rings.
func (q *Queue) Save(w *codec.Writer) {
	w.U16(q.lastAvail)
	w.U16(q.usedIdx)
}

// Restore reads the state that Save wrote. The queue q must have the same Config as the saved
// queue. The driver has been notified of all chains that were pushed before the save, because
// devices call NeedsInterrupt before they release the run lock.
func (q *Queue) Restore(r *codec.Reader) error {
	q.lastAvail, q.usedIdx = r.U16(), r.U16()
	q.signalled = q.usedIdx
	if err := r.Err(); err != nil {
		return fmt.Errorf("restore virtqueue: %w", err)
	}
	return nil
}

var (
	errLoop     = errors.New("more descriptors than allowed, or a loop")
	errOrder    = errors.New("a readable descriptor after a writable one")
	errBytes    = errors.New("too many bytes in one chain")
	errIndirect = errors.New("bad indirect descriptor")
)
