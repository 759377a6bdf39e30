package vsock

import (
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
)

// stateVersion changes whenever the layout of Save changes. Version 1 did not say whether the guest
// has connections.
const stateVersion = 2

// Save implements virtio.Stater. It saves no connections, because several copies of a guest cannot
// share the host socket of a connection. It only saves whether there are connections.
func (d *Device) Save(w *codec.Writer) {
	w.U32(stateVersion)
	w.U32(d.cfg.GuestCID)
	w.Bool(d.holding)
	w.U16(d.holdUntil)
	w.Bool(d.guestConnected())
}

// guestConnected reports whether the guest may believe that it has connections. The connections may
// have ended without the guest's knowledge, because there was no buffer for the RST, or because the
// driver has not handled a transport reset.
func (d *Device) guestConnected() bool {
	return len(d.conns) > 0 || len(d.orphans) > 0 || d.resetDue || d.holding
}

// Restore implements virtio.Stater. If the guest had connections, the first Notify sends a
// transport reset, which ends them. Other guests get no reset, because in every forked sandbox a
// reset would cost an interrupt, a worker thread and the pages of a queue.
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
