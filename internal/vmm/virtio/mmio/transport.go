// Package mmio is the virtio-mmio transport, version 2 (virtio 1.2 §4.2). It consists of the
// register window through which a driver finds a device, negotiates features and sets up queues,
// and of the goroutine that serves the driver's kicks.
//
// It does not decode bus addresses (callers pass offsets into one window), and it neither creates
// nor registers KVM objects. The machine registers NotifyFD as an ioeventfd, and connects Interrupt
// to an input of the interrupt controllers. One eventfd serves all queues of a device: checking an
// unchanged queue costs one load, while a descriptor per queue would cost memory in every VM. A
// driver's writes can only change a register, be ignored, or cause DEVICE_NEEDS_RESET.
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

// Transport shows one device to the guest.
//
// Lock order: mu (registers), then run (device execution). Status and interrupt bits are atomic,
// because the device sets them under run and the driver reads them under mu.
type Transport struct {
	mem  *guestmem.Memory
	dev  virtio.Device
	irq  virtio.Interrupt
	info virtio.Info
	kick *virtio.EventFD
	done chan struct{} // closed when the kick goroutine has ended

	status    atomic.Uint32
	interrupt atomic.Uint32

	mu                sync.Mutex
	deviceFeaturesSel uint32
	driverFeaturesSel uint32
	driverFeatures    uint64
	queueSel          uint32
	queueConfigs      []queueConfig

	wanted   atomic.Int32 // number of callers that want the device to stop and release run, see lockRun
	run      sync.Mutex   // held while device code runs, and from Quiesce to Unquiesce
	queues   []*virtq.Queue
	running  bool // activated and not failed
	quiesced bool
	closed   bool
	failure  error
}

// New returns a transport for dev with interrupts to irq, and starts the transport's goroutine,
// which Close ends.
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

// NotifyFD returns the eventfd for KVM's ioeventfd at RegQueueNotify, which still belongs to the
// transport. Register it without datamatch, so that it matches every value. Use length 0 if KVM has
// KVM_CAP_IOEVENTFD_ANY_LENGTH, so that KVM need not decode the instruction; otherwise length 4.
func (t *Transport) NotifyFD() int { return t.kick.FD() }

// InterruptStatus returns the word of RegInterruptStatus and RegInterruptACK. The runner of vCPUs
// may use it to serve these two registers, which a driver accesses for every interrupt.
func (t *Transport) InterruptStatus() *atomic.Uint32 { return &t.interrupt }

// Close stops the device, ends the goroutine and closes NotifyFD. It does not close the device. The
// transport may be quiesced; it must not be used afterwards.
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

// Err returns why the device last went to DEVICE_NEEDS_RESET, or nil.
func (t *Transport) Err() error {
	t.run.Lock()
	defer t.run.Unlock()
	return t.failure
}

// Quiesce waits until no device code runs, and prevents device code from running until Unquiesce.
// In between, registers, queues and guest memory are not touched. The vCPUs must be stopped,
// because their register accesses would block. Only the goroutine that pauses the machine calls
// Quiesce, Unquiesce, Save and Restore.
func (t *Transport) Quiesce() {
	t.lockRun()
	t.quiesced = true
}

// lockRun takes run from a device that may be busy: the device releases run after its current piece
// of work. A vCPU that resets the device waits here too, and a pause of that vCPU then waits for
// it.
func (t *Transport) lockRun() {
	t.wanted.Add(1)
	t.run.Lock()
	t.wanted.Add(-1)
}

// Unquiesce lets the device run again. It serves every queue as if kicked, because a kick may have
// been lost with its eventfd. It also raises unacknowledged interrupts again, so the state of the
// interrupt controllers must be restored before.
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

// idle reports whether a kick would find nothing to do. Preconditions: run is held.
func (t *Transport) idle() bool {
	busy := func(q *virtq.Queue) bool { return q != nil && !q.Idle() }
	return !t.running || !slices.ContainsFunc(t.queues, busy)
}

// Exclusive calls f while no device code runs, and then lets the device serve its queues. The
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

// Interrupt implements virtio.Transport.
func (t *Transport) Interrupt(q *virtq.Queue) error {
	want, err := q.NeedsInterrupt()
	if err != nil || !want {
		return err
	}
	return t.raise(interruptUsed)
}

// raise records the reason first, because the driver's interrupt handler reads it. It raises the
// line even if the driver has not yet acknowledged an earlier interrupt, because an edge is lost
// while the line is masked.
func (t *Transport) raise(reason uint32) error {
	t.interrupt.Or(reason)
	return t.irq.Raise()
}

// Fail implements virtio.Transport.
func (t *Transport) Fail(err error) {
	t.dev.Reset() // releases the device's descriptors, which are no longer served
	t.running, t.failure = false, err
	if t.status.Or(statusNeedsReset)&statusDriverOK == 0 {
		return // virtio 1.2 §2.1.2: a driver that is not up gets no notification
	}
	if rerr := t.raise(interruptConfig); rerr != nil {
		t.failure = errors.Join(err, rerr)
	}
}

// serve is the goroutine that waits for kicks.
func (t *Transport) serve() {
	defer close(t.done)
	for t.kick.Wait() == nil {
		for t.serveOnce() {
			runtime.Gosched()
		}
	}
}

// serveOnce lets the device serve its queues and reports whether there is more to do.
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

// activate hands the queues to the device. Preconditions: mu and run are held.
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

// stop disconnects the device from the driver. Preconditions: run is held.
func (t *Transport) stop() {
	t.dev.Reset()
	t.running, t.queues, t.failure = false, nil, nil
}

// resetRegisters sets every register to its value after reset. Preconditions: mu is held or t is
// not shared yet.
func (t *Transport) resetRegisters() {
	t.status.Store(0)
	t.interrupt.Store(0)
	t.deviceFeaturesSel, t.driverFeaturesSel, t.driverFeatures, t.queueSel = 0, 0, 0, 0
	t.queueConfigs = make([]queueConfig, len(t.info.QueueSizes))
}
