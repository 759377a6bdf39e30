// Package balloon implements the part of the virtio memory balloon device (virtio 1.2 §5.5) with
// which a guest gives memory back: free page reporting.
//
// The guest's kernel reports blocks of memory that have been free for about two seconds. The device
// passes the blocks to its owner, which drops their content. The kernel may use a block again at
// any later time, without asking, and expects no particular content. A kernel that fills free pages
// with a pattern expects this pattern, but it reports nothing, because the device does not offer the
// feature VIRTIO_BALLOON_F_PAGE_POISON.
//
// The device never asks for memory: its target size is always zero. It answers requests to inflate
// or deflate the balloon, and ignores them.
package balloon

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// featureReporting is VIRTIO_BALLOON_F_REPORTING (virtio 1.2 §5.5.3).
const featureReporting uint64 = 1 << 5

// Indexes of the queues. The specification gives the reporting queue the index 4 (virtio 1.2
// §5.5.2). But Linux leaves no gaps for the queues of features that it has not accepted, and
// neither do the devices of other VMMs.
const (
	queueInflate = iota
	queueDeflate
	queueReporting
	queues
)

const (
	// queueSize is the smallest size that Linux accepts for the reporting queue: the number of
	// blocks in one report (PAGE_REPORTING_CAPACITY in include/linux/page_reporting.h).
	queueSize = 32

	// stepBytes is the number of bytes that the device releases before it checks whether the
	// machine is about to pause. The host's kernel needs up to 0.2 ms to drop so many private
	// pages.
	stepBytes = 2 << 20

	// stateVersion changes whenever the layout of Save changes.
	stateVersion = 1
)

// Config has two functions of the device's owner. Both are required. The device calls them while it
// holds its run lock.
type Config struct {
	// Release drops the content of a part of guest memory. It may keep the content of any page.
	Release func(view []byte)

	// Held reports whether all content must be kept for now. While Held returns true, reports wait
	// in their queue. When Held returns false again, the owner makes the device serve its queues.
	// Held may begin to return true only while the device is quiesced.
	Held func() bool
}

// Device is a balloon device. It implements virtio.Device.
type Device struct {
	cfg       Config
	transport virtio.Transport
	queues    []*virtq.Queue
}

// New returns a balloon device.
func New(cfg Config) *Device { return &Device{cfg: cfg} }

// Info implements virtio.Device.
func (d *Device) Info() virtio.Info {
	return virtio.Info{ID: virtio.IDBalloon, Features: featureReporting,
		QueueSizes: []uint16{queueSize, queueSize, queueSize}}
}

// ReadConfig implements virtio.Device. All fields of the configuration are zero, among them the
// target size.
func (d *Device) ReadConfig(_ uint64, p []byte) { clear(p) }

// Activate implements virtio.Device.
func (d *Device) Activate(t virtio.Transport, queues []*virtq.Queue, features uint64) error {
	if features&featureReporting != 0 && queues[queueReporting] == nil {
		return errors.New("the reporting queue is not set up")
	}
	for _, q := range queues {
		if q != nil {
			q.LeaveUnwritten()
		}
	}
	d.transport, d.queues = t, queues
	return nil
}

// Reset implements virtio.Device.
func (d *Device) Reset() { d.transport, d.queues = nil, nil }

// Notify implements virtio.Device.
func (d *Device) Notify() (more bool, err error) {
	if d.cfg.Held() {
		return false, nil
	}
	for i, q := range d.queues {
		if q == nil {
			continue
		}
		again, err := d.serve(q, i == queueReporting)
		if err != nil {
			return false, err
		}
		more = more || again
	}
	return more, nil
}

// serve serves one queue. It returns true if the queue may have further requests.
func (d *Device) serve(q *virtq.Queue, reporting bool) (more bool, err error) {
	for range queueSize {
		if d.transport.Wanted() {
			return true, nil
		}
		c, err := q.Pop()
		if err != nil {
			return false, err
		}
		if c == nil {
			return q.EnableNotify()
		}
		if reporting {
			d.release(c.Writable)
		}
		if err := q.Push(c.Head, 0); err != nil {
			return false, err
		}
		if err := d.transport.Interrupt(q); err != nil {
			return false, err
		}
	}
	return true, nil
}

// release releases the reported blocks. If the machine is about to pause, the remaining blocks keep
// their content, because a pause must not wait for them.
func (d *Device) release(blocks [][]byte) {
	for _, b := range blocks {
		for len(b) > 0 && !d.transport.Wanted() {
			n := min(len(b), stepBytes)
			d.cfg.Release(b[:n])
			b = b[n:]
		}
	}
}

// Save implements virtio.Stater.
func (d *Device) Save(w *codec.Writer) { w.U32(stateVersion) }

// Restore implements virtio.Stater.
func (d *Device) Restore(r *codec.Reader) error {
	if v := r.U32(); r.Err() == nil && v != stateVersion {
		return fmt.Errorf("balloon device state version %d, want %d", v, stateVersion)
	}
	return r.Err()
}
