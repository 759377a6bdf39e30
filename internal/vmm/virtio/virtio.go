// Package virtio defines the contract between virtio devices and the transport that makes them
// visible to a guest. The contract covers identity, features, activation, kicks (the driver's
// notifications), interrupts, quiescence and saved state (virtio 1.2 §2, §3).
//
// It contains no device, no register layout and no code for rings; these are in the packages below
// it. None of these packages uses KVM: package machine supplies the Interrupt, and registers an
// EventFD for kicks.
//
// States of a device:
//
//	New ──▶ inactive ──Activate──▶ running ──Reset──▶ inactive
//	                                │  ▲
//	                         failure│  │Reset, Activate      (DEVICE_NEEDS_RESET)
//	                                ▼  │
//	                              failed
//
// A device is single-threaded. Its transport holds the device's run lock when it calls Activate,
// Notify, Reset, Save or Restore. If a device has its own goroutines, they take the same lock with
// Transport.Enter before they touch the device's state, its queues or guest memory. Quiescing a
// device means holding the lock. Then no device code runs, and guest memory does not change.
package virtio

import (
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// Device types (virtio 1.2 §5).
const (
	IDNet     = 1
	IDBlock   = 2
	IDRNG     = 4
	IDBalloon = 5
	IDVsock   = 19
)

// Feature bits of the transport and the rings (virtio 1.2 §6). A transport offers them for every
// device, and devices do not list them in Info.
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
	Features   uint64   // device-specific feature bits that the device offers
	QueueSizes []uint16 // maximum size of each queue, a power of two
}

// Device is a virtio device behind a transport.
type Device interface {
	// Info may be called at any time, by any goroutine.
	Info() Info

	// ReadConfig fills p from offset off of the device's configuration space. Bytes beyond the end
	// of this space read as zero. ReadConfig may be called at any time, by any goroutine. No device
	// here has a configuration that the driver can write.
	ReadConfig(off uint64, p []byte)

	// Activate starts the device with the features and queues that the driver has chosen. A queue
	// that the driver did not set up is nil. Activate must not access guest memory, because it may
	// run while a restored machine is quiesced. An error means that the driver broke the rules; the
	// transport then sets DEVICE_NEEDS_RESET.
	Activate(t Transport, queues []*virtq.Queue, features uint64) error

	// Notify serves every queue. It is called after a kick, and when a kick may have been lost. If
	// Notify stops early to release the run lock, it returns true, and is then called again. An
	// error means that the driver broke the rules.
	Notify() (more bool, err error)

	// Reset drops all state that the driver has set. For an inactive device it does nothing.
	Reset()

	Stater
}

// Stater saves and restores the state of a device. The transport saves queues and registers.
type Stater interface {
	// Save appends the device's own state, beginning with a version.
	Save(w *codec.Writer)

	// Restore reads the state that Save wrote. It is called for a device that has just been created
	// or reset. It returns an error for a state of another version, or of a device with another
	// configuration. If the driver had started the saved device, Activate is called next.
	Restore(r *codec.Reader) error
}

// Transport has the operations that an activated device can perform on its transport.
type Transport interface {
	// Enter takes the run lock for one of the device's own goroutines. It waits while the device is
	// quiesced. If Enter returns false, the lock is not held, because the device is not running: it
	// was never activated, was reset or has failed.
	Enter() bool

	// Leave releases the lock that Enter took.
	Leave()

	// Wanted reports whether another goroutine waits for the run lock, to pause the machine or to
	// reset the device. Device code must then stop before its next request. If it did not stop, the
	// time until the pause would depend on the number of queued requests.
	Wanted() bool

	// Kick makes the transport call Notify soon, as after a kick of the driver. Any goroutine may
	// call Kick, without the run lock.
	Kick()

	// Interrupt tells the driver that the queue has used buffers, unless the driver has disabled
	// this interrupt. The run lock must be held.
	Interrupt(q *virtq.Queue) error

	// Fail resets the device and sets DEVICE_NEEDS_RESET, because the driver broke the rules. It is
	// for failures that are found outside of Notify. The run lock must be held. After Fail the
	// device may only call Leave.
	Fail(err error)
}
