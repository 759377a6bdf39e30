// Package mmio implements the virtio-mmio transport, version 2 (virtio 1.2 §4.2). It has the
// register window through which a driver finds a device, negotiates features and sets up queues. It
// also has the goroutine that serves the driver's notifications ("kicks").
//
// It does not decode bus addresses, because callers pass offsets into one window. It does not use
// KVM: package machine registers NotifyFD as an ioeventfd, and connects Interrupt to an input of
// the interrupt controllers. All queues of a device share one eventfd, because checking an
// unchanged queue takes only one load. A descriptor for each queue would take memory in every VM. A
// write of a driver can only change a register, be ignored, or cause DEVICE_NEEDS_RESET.
package mmio

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// queueConfig is the driver's configuration of one queue.
type queueConfig struct {
	size                 uint16
	ready                bool
	desc, driver, device uint64
}

// Transport makes one device visible to the guest.
//
// Lock order: mu (registers), then run (device execution). Status and interrupt bits are atomic,
// because the device sets them while run is held, but the driver reads them with mu held or without
// any lock.
type Transport struct {
	mem  *guestmem.Memory
	dev  virtio.Device
	irq  virtio.Interrupt
	info virtio.Info
	kick *virtio.EventFD
	done chan struct{} // closed when the kick goroutine has ended

	status     atomic.Uint32
	interrupt  atomic.Uint32
	generation atomic.Uint32 // changes with the device's configuration space

	mu                sync.Mutex
	deviceFeaturesSel uint32
	driverFeaturesSel uint32
	driverFeatures    uint64
	queueSel          uint32
	queueConfigs      []queueConfig

	wanted   atomic.Int32 // number of goroutines that wait in lockRun
	run      sync.Mutex   // held while device code runs, and from Quiesce to Unquiesce
	queues   []*virtq.Queue
	running  bool // whether the device has been activated and has not failed
	quiesced bool
	closed   bool
	failure  error
}

// New returns a transport for the device dev. The transport's interrupts go to irq. New starts the
// transport's goroutine, which Close ends.
func New(mem *guestmem.Memory, dev virtio.Device, irq virtio.Interrupt) (*Transport, error) {
	kick, err := virtio.NewEventFD()
	if err != nil {
		return nil, err
	}
	t := &Transport{mem: mem, dev: dev, irq: irq, info: dev.Info(), kick: kick, done: make(chan struct{})}
	t.resetRegisters()
	go t.serve()
	return t, nil
}

// NotifyFD returns the eventfd for KVM's ioeventfd at RegQueueNotify. The transport still owns the
// eventfd. Register it without datamatch, so that every value matches. If KVM has
// KVM_CAP_IOEVENTFD_ANY_LENGTH, register it with length 0, so that KVM need not decode the
// instruction; otherwise use length 4.
func (t *Transport) NotifyFD() int { return t.kick.FD() }

// InterruptStatus returns the value behind RegInterruptStatus and RegInterruptACK. vCPU threads may
// use this value to handle accesses to the two registers themselves, because a driver accesses them
// at every interrupt.
func (t *Transport) InterruptStatus() *atomic.Uint32 { return &t.interrupt }

// Close stops the device, ends the goroutine and closes NotifyFD. It does not close the device.
// Close may be called while the transport is quiesced. After Close, the transport must not be used.
func (t *Transport) Close() error {
	if !t.quiesced {
		t.lockRun()
	}
	t.stop()
	t.closed, t.quiesced = true, false
	t.run.Unlock()
	err := t.kick.Close()
	<-t.done
	return err
}

// Err returns the reason for the latest DEVICE_NEEDS_RESET, or nil if it was never set.
func (t *Transport) Err() error {
	t.run.Lock()
	defer t.run.Unlock()
	return t.failure
}

// Quiesce waits until no device code runs, and prevents device code from running until Unquiesce.
// Until then, the device does not access registers, queues or guest memory. The vCPUs must be
// stopped, because their register accesses would block. Only the goroutine that pauses the machine
// may call Quiesce, Unquiesce, Save and Restore.
func (t *Transport) Quiesce() {
	t.lockRun()
	t.quiesced = true
}

// lockRun takes the run lock, which a busy device may hold. It makes the device release the lock
// after the current piece of work. A vCPU that resets the device also uses lockRun, because a pause
// must wait for that vCPU.
func (t *Transport) lockRun() {
	t.wanted.Add(1)
	t.run.Lock()
	t.wanted.Add(-1)
}

// Unquiesce lets the device run again. It makes the device serve every queue, because notifications
// may have been lost with the eventfd of a saved machine. If the driver has not acknowledged an
// interrupt, Unquiesce raises it again, so the interrupt controllers must already have their state.
func (t *Transport) Unquiesce() error {
	idle := t.idle()
	t.quiesced = false
	t.run.Unlock()
	if t.interrupt.Load() != 0 {
		if err := t.irq.Raise(); err != nil {
			return err
		}
	}
	if idle {
		return nil
	}
	return t.kick.Signal()
}

// idle reports whether the device has nothing to do. Preconditions: run is held.
func (t *Transport) idle() bool {
	busy := func(q *virtq.Queue) bool { return q != nil && !q.Idle() }
	return !t.running || !slices.ContainsFunc(t.queues, busy)
}

// Exclusive calls f while no device code runs. Then it makes the device serve its queues. The
// transport may be quiesced. Only the goroutine that may call Quiesce may call Exclusive.
func (t *Transport) Exclusive(f func()) error {
	if t.quiesced {
		f()
		return nil // Unquiesce serves the queues
	}
	t.lockRun()
	f()
	t.run.Unlock()
	return t.kick.Signal()
}

// Enter implements virtio.Transport.
func (t *Transport) Enter() bool {
	t.run.Lock()
	if !t.running {
		t.run.Unlock()
		return false
	}
	return true
}

// Leave implements virtio.Transport.
func (t *Transport) Leave() { t.run.Unlock() }

// Wanted implements virtio.Transport.
func (t *Transport) Wanted() bool { return t.wanted.Load() > 0 }

// Kick implements virtio.Transport.
func (t *Transport) Kick() { _ = t.kick.Signal() } // fails only after Close, when the machine is ending

// ConfigChanged tells the driver that the device's configuration space has changed (virtio 1.2
// §2.5). The transport may be quiesced.
func (t *Transport) ConfigChanged() error {
	t.generation.Add(1)
	if t.status.Load()&statusDriverOK == 0 {
		return nil // without DRIVER_OK the driver gets no notification (virtio 1.2 §2.1.2)
	}
	return t.raise(interruptConfig)
}

// Interrupt implements virtio.Transport.
func (t *Transport) Interrupt(q *virtq.Queue) error {
	want, err := q.NeedsInterrupt()
	if err != nil || !want {
		return err
	}
	return t.raise(interruptUsed)
}

// raise sets the bit of the reason and raises the line. It sets the bit first, because the driver's
// interrupt handler reads the bit. It raises the line even if the driver has not acknowledged an
// earlier interrupt, because the earlier edge may have been lost while the line was masked.
func (t *Transport) raise(reason uint32) error {
	t.interrupt.Or(reason)
	return t.irq.Raise()
}

// Fail implements virtio.Transport.
func (t *Transport) Fail(err error) {
	t.dev.Reset() // releases descriptors that the device will no longer serve
	t.running, t.failure = false, err
	if t.status.Or(statusNeedsReset)&statusDriverOK == 0 {
		return // without DRIVER_OK the driver gets no notification (virtio 1.2 §2.1.2)
	}
	if rerr := t.raise(interruptConfig); rerr != nil {
		t.failure = errors.Join(err, rerr)
	}
}

// serve is the transport's goroutine. It waits for kicks and makes the device serve its queues.
func (t *Transport) serve() {
	defer close(t.done)
	for t.kick.Wait() == nil {
		for t.serveOnce() {
			runtime.Gosched()
		}
	}
}

// serveOnce lets the device serve its queues once. It returns true if the device has more to do.
func (t *Transport) serveOnce() bool {
	if !t.Enter() {
		return false
	}
	defer t.Leave()
	more, err := t.dev.Notify()
	if err != nil {
		t.Fail(err)
		return false
	}
	return more
}

// activate starts the device with the queues that the driver has set up. Preconditions: mu and run
// are held.
func (t *Transport) activate() error {
	t.queues = make([]*virtq.Queue, len(t.queueConfigs))
	for i, c := range t.queueConfigs {
		if !c.ready {
			continue
		}
		q, err := virtq.New(t.mem, virtq.Config{
			Size:     c.size,
			Desc:     guestmem.GPA(c.desc),
			Driver:   guestmem.GPA(c.driver),
			Device:   guestmem.GPA(c.device),
			EventIdx: t.driverFeatures&virtio.FEventIdx != 0,
			Indirect: t.driverFeatures&virtio.FIndirectDesc != 0,
		})
		if err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
		t.queues[i] = q
	}
	if err := t.dev.Activate(t, t.queues, t.driverFeatures); err != nil {
		return fmt.Errorf("activate device %d: %w", t.info.ID, err)
	}
	t.running, t.failure = true, nil
	return nil
}

// stop resets the device, which then has no driver. Preconditions: run is held.
func (t *Transport) stop() {
	t.dev.Reset()
	t.running, t.queues, t.failure = false, nil, nil
}

// resetRegisters sets every register to its value after a reset. Preconditions: mu is held, or t is
// not shared yet.
func (t *Transport) resetRegisters() {
	t.status.Store(0)
	t.interrupt.Store(0)
	t.deviceFeaturesSel, t.driverFeaturesSel, t.driverFeatures, t.queueSel = 0, 0, 0, 0
	t.queueConfigs = make([]queueConfig, len(t.info.QueueSizes))
}
