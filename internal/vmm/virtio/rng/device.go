// Package rng implements the virtio entropy device (virtio 1.2 §5.4). It fills the driver's buffers
// with random bytes from getrandom(2).
//
// The device has no pool and no state, so two forks of a guest never receive the same bytes from
// the device. But the guest's Linux fetches bytes in advance. In a fork, the guest's agent drops
// these bytes.
package rng

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/rawcall"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

const (
	queueSize = 8 // Linux has at most one request in flight

	// maxFill is the maximum number of bytes in one response. A device may return less than was
	// requested.
	maxFill = 4096

	// stateVersion changes whenever the layout of Save changes.
	stateVersion = 1
)

// Device is an entropy source. It implements virtio.Device.
type Device struct {
	transport virtio.Transport
	queue     *virtq.Queue
}

// New returns an entropy device.
func New() *Device { return &Device{} }

// Info implements virtio.Device.
func (d *Device) Info() virtio.Info {
	return virtio.Info{ID: virtio.IDRNG, QueueSizes: []uint16{queueSize}}
}

// ReadConfig implements virtio.Device. The device has no configuration.
func (d *Device) ReadConfig(_ uint64, p []byte) { clear(p) }

// Activate implements virtio.Device.
func (d *Device) Activate(t virtio.Transport, queues []*virtq.Queue, _ uint64) error {
	if queues[0] == nil {
		return errors.New("the request queue is not set up")
	}
	d.transport, d.queue = t, queues[0]
	return nil
}

// Reset implements virtio.Device.
func (d *Device) Reset() { d.transport, d.queue = nil, nil }

// Notify implements virtio.Device.
func (d *Device) Notify() (more bool, err error) {
	for i := 0; i < queueSize && !d.transport.Wanted(); i++ {
		c, err := d.queue.Pop()
		if err != nil {
			return false, err
		}
		if c == nil {
			return d.queue.EnableNotify()
		}
		n, err := fill(c.Writable)
		if err != nil {
			return false, err
		}
		if err := d.queue.Push(c.Head, n); err != nil {
			return false, err
		}
		if err := d.transport.Interrupt(d.queue); err != nil {
			return false, err
		}
	}
	return true, nil
}

// fill writes up to maxFill random bytes to the front of the given views, and returns their number.
func fill(views [][]byte) (written uint32, err error) {
	for _, v := range views {
		v = v[:min(len(v), maxFill-int(written))]
		for len(v) > 0 {
			n, err := rawcall.Random(v)
			if err != nil {
				return written, fmt.Errorf("getrandom: %w", err)
			}
			v, written = v[n:], written+uint32(n)
		}
	}
	return written, nil
}

// Save implements virtio.Stater.
func (d *Device) Save(w *codec.Writer) { w.U32(stateVersion) }

// Restore implements virtio.Stater.
func (d *Device) Restore(r *codec.Reader) error {
	if v := r.U32(); r.Err() == nil && v != stateVersion {
		return fmt.Errorf("entropy device state version %d, want %d", v, stateVersion)
	}
	return r.Err()
}
