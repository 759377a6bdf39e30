package vsock

import (
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
)

// stateVersion changes whenever the layout of Save does. Version 1 did not say whether the guest
// has connections.
const stateVersion = 2

// Save implements virtio.Stater. Connections are not saved, but that there are some: they have one
// host end and would have many guest ends.
func (d *Device) Save(w *codec.Writer) {
	w.U32(stateVersion)
	w.U32(d.cfg.GuestCID)
	w.Bool(d.holding)
	w.U16(d.holdUntil)
	w.Bool(d.guestConnected())
}

// guestConnected reports whether the guest may have connections of which it must be told that they
// are gone: also those of which it was to be told already, by an RST for which there was no buffer,
// or by a transport reset that its driver has not dealt with.
func (d *Device) guestConnected() bool {
	return len(d.conns) > 0 || len(d.orphans) > 0 || d.resetDue || d.holding
}

// Restore implements virtio.Stater. A guest that had connections is told by a transport reset, at
// the first Notify, that they are gone. Others are spared it: an interrupt, a worker thread and the
// pages of a queue in every child.
func (d *Device) Restore(r *codec.Reader) error {
	version, cid, holding, until := r.U32(), r.U32(), r.Bool(), r.U16()
	connected := true
	if version > 1 {
		connected = r.Bool()
	}
	switch {
	case r.Err() != nil:
		return fmt.Errorf("vsock device state: %w", r.Err())
	case version != 1 && version != stateVersion:
		return fmt.Errorf("vsock device state version %d, want 1 or %d", version, stateVersion)
	case cid != d.cfg.GuestCID:
		return fmt.Errorf("state is of a vsock device with CID %d, this one has %d", cid, d.cfg.GuestCID)
	}
	d.resetDue, d.holding, d.holdUntil = connected, holding, until
	return nil
}
