// Package virtio is the contract between virtio devices and the transport that shows them to a
// guest: identity, features, activation, kicks, interrupts, quiescence and saved state (virtio 1.2
// §2, §3).
//
// It has no device, no register layout and no ring code; those are the packages below it. Nothing
// in this tree talks to KVM: the machine supplies the Interrupt, and registers an EventFD for
// kicks.
//
// Life of a device:
//
//	New ──▶ inactive ──Activate──▶ running ──Reset──▶ inactive
//	                                │  ▲
//	                         failure│  │Reset, Activate      (DEVICE_NEEDS_RESET)
//	                                ▼  │
//	                              failed
//
// A device is single-threaded: its transport calls Activate, Notify, Reset, Save and Restore one at
// a time, holding the device's run lock. A device with goroutines of its own takes the same lock
// with Transport.Enter before it touches its state, its queues or guest memory. Quiescing means
// holding that lock: while it is held no device code runs, and none touches guest memory.
package virtio

import (
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// Device types (virtio 1.2 §5).
const (
	IDNet   = 1
	IDBlock = 2
	IDRNG   = 4
	IDVsock = 19
)

// Feature bits of the transport and the rings (virtio 1.2 §6). A transport offers them for every
// device; devices do not list them in Info.
const (
	FIndirectDesc uint64 = 1 << 28 // VIRTIO_F_INDIRECT_DESC
	FEventIdx     uint64 = 1 << 29 // VIRTIO_F_EVENT_IDX
	FVersion1     uint64 = 1 << 32 // VIRTIO_F_VERSION_1
)

// Interrupt is the line from one device to the guest. Raise may be called from any goroutine and
// must not block.
type Interrupt interface {
	Raise() error
}

// Info describes a device. It never changes during the life of the device.
type Info struct {
	ID         uint32   // device type, such as IDBlock
	Features   uint64   // device-specific feature bits offered
	QueueSizes []uint16 // largest size of each queue, powers of two
}

// Device is a virtio device behind a transport.
type Device interface {
	// Info may be called at any time, by any goroutine.
	Info() Info

	// ReadConfig fills p with the device's configuration space from offset off. Bytes beyond the
	// end of the space read as zero. ReadConfig may be called at any time, by any goroutine. No
	// device here has writable configuration.
	ReadConfig(off uint64, p []byte)

	// Activate starts the device with the features and queues that the driver chose. A queue that
	// the driver did not set up is nil. Activate must not touch guest memory, because it also runs
	// while a restored machine is quiesced. An error means that the driver broke the rules. The
	// transport then sets DEVICE_NEEDS_RESET.
	Activate(t Transport, queues []*virtq.Queue, features uint64) error

	// Notify serves every queue, because the driver kicked or because a kick may have been lost. It
	// returns more if it stopped early to release the run lock, and is then called again. An error
	// means that the driver broke the rules.
	Notify() (more bool, err error)

	// Reset drops everything that came from the driver. It does nothing if the device is inactive.
	Reset()

	Stater
}

// Stater is the state of a device in a snapshot. The transport saves rings and registers.
type Stater interface {
	// Save appends the device's own state, beginning with a version.
	Save(w *codec.Writer)

	// Restore reads the state that Save wrote, in a device that has just been created or reset. It
	// refuses state of another version, or of a device with another configuration. If the driver
	// had started the device when it was saved, Activate is called next.
	Restore(r *codec.Reader) error
}

// Transport is an activated device's view of its transport.
type Transport interface {
	// Enter takes the device's run lock for one of the device's own goroutines. While the device is
	// quiesced it waits. If it returns false, the device is not running (never activated, reset or
	// failed) and the lock is not held.
	Enter() bool

	// Leave releases the lock that Enter took.
	Leave()

	// Wanted reports whether another goroutine waits for the run lock, to pause the machine or to
	// reset the device. Device code that holds the lock must then stop before its next request: the
	// duration of a pause must not depend on how much the guest has queued.
	Wanted() bool

	// Interrupt tells the driver that the queue has used buffers, unless the driver has disabled
	// that. The run lock must be held.
	Interrupt(q *virtq.Queue) error

	// Fail resets the device and sets DEVICE_NEEDS_RESET because the driver broke the rules. It is
	// for failures found outside Notify. The run lock must be held; afterwards the device must only
	// call Leave.
	Fail(err error)
}
