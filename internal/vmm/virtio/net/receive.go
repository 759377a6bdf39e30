package net

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

var (
	errShortBuffer = errors.New("receive buffer without room for a header")
	errEmptyBuffer = errors.New("receive buffer without room")
)

// receive copies the peer's frames to the driver's buffers.
func (d *Device) receive() (more bool, err error) {
	if !d.awake || d.stalled {
		return false, nil
	}
	for i := 0; i < burst; i++ {
		if d.peer == nil {
			return false, nil
		}
		if d.transport.Wanted() {
			break
		}
		d.parts.Reset()
		d.parts.Add(d.raw[:])
		n, err := d.peer.peek(&d.parts)
		if errors.Is(err, unix.EAGAIN) {
			return false, nil
		}
		if err != nil || n == 0 {
			d.dropPeer()
			return false, nil
		}
		if err := d.deliver(n); err != nil || d.stalled {
			return false, err
		}
	}
	return true, nil
}

// deliver moves the next message, which has n bytes, to the driver. The message's header is already
// in d.raw. If the driver cannot accept the message, deliver drops it. If there are too few buffers
// at the moment, it leaves the message in the socket and sets d.stalled.
func (d *Device) deliver(n int) error {
	h := decodeHeader(&d.raw)
	csum := d.features&FGuestCsum != 0
	if h.flags &= flagNeedsCsum | flagDataValid; !csum {
		h.flags &^= flagDataValid // the flag is only a hint, and this driver has not negotiated it (virtio 1.2 §5.1.6.4.1)
	}
	d.used = d.used[:0]
	room, err := false, error(nil)
	if h.fits(n-frame.HeaderBytes, csum, d.features&FGuestTSO4 != 0) {
		if room, err = d.collect(n); err != nil || d.stalled {
			return err
		}
	}
	if !room {
		d.parts.Reset()
	}
	if err := d.peer.read(&d.parts); err != nil {
		// Guest memory cannot be written, or the host is out of memory. The message may be lost,
		// but the buffers are returned to the queue.
		d.putBack()
		return nil
	}
	if !room {
		return nil
	}
	d.raw = h.encode(uint16(len(d.used)))
	scatter(d.first, d.raw[:])
	return d.rx.PushAll(d.used)
}

// collect takes receive buffers for a message of n bytes from the queue, and stores them in d.parts
// and d.used. If the available buffers are too small for the message, collect returns false and
// leaves the buffers in the queue. It also sets d.stalled if the message could fit after the driver
// has added buffers.
func (d *Device) collect(n int) (bool, error) {
	d.parts.Reset()
	d.used = d.used[:0]
	for left := n; left > 0; {
		c, err := d.popBuffer()
		if err != nil {
			return false, err
		}
		if c == nil {
			// If all entries of the queue are used, no more buffers can come.
			d.stalled = len(d.used) < d.rx.Size()
			d.putBack()
			return false, nil
		}
		if len(d.used) == 0 {
			if c.WriteLen < frame.HeaderBytes {
				return false, errShortBuffer // virtio 1.2 §5.1.6.3.1
			}
			d.first = append(d.first[:0], c.Writable...)
		}
		if c.WriteLen == 0 {
			return false, errEmptyBuffer
		}
		k := min(left, int(c.WriteLen))
		d.used = append(d.used, virtq.Used{Head: c.Head, Written: uint32(k)})
		for _, view := range c.Writable {
			d.parts.Add(view)
		}
		left -= k
		if left > 0 && d.features&FMrgRxbuf == 0 || d.parts.Len() > maxParts {
			d.putBack()
			return false, nil
		}
	}
	return true, nil
}

// popBuffer takes a receive buffer from the queue. If there is none, it returns nil. The driver
// will then notify the device when it adds a buffer.
func (d *Device) popBuffer() (*virtq.Chain, error) {
	for {
		c, err := d.rx.Pop()
		if err != nil || c != nil {
			return c, err
		}
		if pending, err := d.rx.EnableNotify(); err != nil || !pending {
			return nil, err
		}
	}
}

// putBack returns to the queue the buffers that collect has stored in d.used.
func (d *Device) putBack() {
	for range d.used {
		d.rx.Unpop()
	}
	d.used = d.used[:0]
}

// scatter copies p to the front of the given views.
func scatter(views [][]byte, p []byte) {
	for _, v := range views {
		p = p[copy(v, p):]
	}
}
