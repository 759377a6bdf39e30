package vsock

import (
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
)

// stateVersion changes whenever the layout of Save does.
const stateVersion = 1

// Save implements virtio.Stater. Connections are not saved: they have one host end and would have
// many guest ends.
func (d *Device) Save(w *codec.Writer) {
	w.U32(stateVersion)
	w.U32(d.cfg.GuestCID)
	w.Bool(d.holding)
	w.U16(d.holdUntil)
}

// Restore implements virtio.Stater. The guest is told by a transport reset, at the first Notify,
// that its connections are gone.
func (d *Device) Restore(r *codec.Reader) error {
	version, cid, holding, until := r.U32(), r.U32(), r.Bool(), r.U16()
	switch {
	case r.Err() != nil:
		return fmt.Errorf("vsock device state: %w", r.Err())
	case version != stateVersion:
		return fmt.Errorf("vsock device state version %d, want %d", version, stateVersion)
	case cid != d.cfg.GuestCID:
		return fmt.Errorf("state is of a vsock device with CID %d, this one has %d", cid, d.cfg.GuestCID)
	}
	d.resetDue, d.holding, d.holdUntil = true, holding, until
	return nil
}
