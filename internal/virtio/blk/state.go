package blk

import (
	"fmt"

	"github.com/forkd/forkd/internal/wire"
)

// stateVersion changes whenever the layout of Save does.
const stateVersion = 1

// Save implements virtio.Stater. No request is in flight in a quiesced device; the shape of the disk is saved so that
// a machine is not put together with a foreign one.
func (d *Device) Save(w *wire.Writer) {
	w.U32(stateVersion)
	w.U64(d.disk.Size())
	w.Bool(d.disk.ReadOnly())
}

// Restore implements virtio.Stater.
func (d *Device) Restore(r *wire.Reader) error {
	version, size, readOnly := r.U32(), r.U64(), r.Bool()
	switch {
	case r.Err() != nil:
		return fmt.Errorf("block device state: %w", r.Err())
	case version != stateVersion:
		return fmt.Errorf("block device state version %d, want %d", version, stateVersion)
	case size != d.disk.Size() || readOnly != d.disk.ReadOnly():
		return fmt.Errorf("state is of a disk of %d bytes (read-only: %v), this one has %d (read-only: %v)",
			size, readOnly, d.disk.Size(), d.disk.ReadOnly())
	}
	return nil
}
