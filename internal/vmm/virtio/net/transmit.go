package net

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// transmit sends the driver's frames. When transmit returns, either the driver will notify the
// device of the next frame, or the socket is full and frames wait in the queue. A restored device
// relies on this.
func (d *Device) transmit() (more bool, err error) {
	if d.blocked {
		return false, nil
	}
	if n, err := d.tx.Pending(); err != nil || n == 0 {
		return false, err
	}
	if err := d.tx.DisableNotify(); err != nil {
		return false, err
	}
	for i := 0; i < burst && !d.transport.Wanted(); i++ {
		c, err := d.tx.Pop()
		if err != nil {
			return false, err
		}
		if c == nil {
			break
		}
		if errors.Is(d.send(c), unix.EAGAIN) {
			d.tx.Unpop()
			d.blocked = true
			return false, nil
		}
		if err := d.tx.Push(c.Head, 0); err != nil {
			return false, err
		}
	}
	return d.tx.EnableNotify()
}

// send sends a frame to the peer, or drops it. If the socket is full, it does neither and returns
// EAGAIN.
func (d *Device) send(c *virtq.Chain) error {
	if d.peer == nil || c.CopyIn(d.raw[:]) != frame.HeaderBytes {
		return nil
	}
	h := decodeHeader(&d.raw)
	h.flags &= flagNeedsCsum // unknown flags must be ignored (virtio 1.2 §5.1.6.2.2)
	if c.ReadLen > frame.MaxFrame || !h.fits(int(c.ReadLen), d.features&FCsum != 0, d.features&FHostTSO4 != 0) {
		return nil
	}
	if !d.awake {
		d.wake()
	}
	d.raw = h.encode(0)
	d.parts.Reset()
	d.parts.Add(d.raw[:])
	for _, view := range c.Readable {
		d.parts.Add(view)
	}
	if d.parts.Len() > maxParts {
		return nil
	}
	err := d.peer.write(&d.parts)
	switch {
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.ENOTCONN):
		d.dropPeer()
	}
	return err
}
