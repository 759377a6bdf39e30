package blk

import (
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
)

// stateVersion changes whenever the layout of Save changes.
const stateVersion = 2

// Save implements virtio.Stater. A quiesced device has no request in progress, so Save only writes
// the size of the disk. With it, Restore can refuse a disk of a different size.
func (d *Device) Save(w *codec.Writer) {
	w.U32(stateVersion)
	w.U64(d.size())
}

// Restore implements virtio.Stater. The size of a slot's disk may differ from the size in the saved
// state; see Changed.
func (d *Device) Restore(r *codec.Reader) error {
	version, size := r.U32(), r.U64()
	switch {
	case r.Err() != nil:
		return fmt.Errorf("block device state: %w", r.Err())
	case version != stateVersion:
		return fmt.Errorf("block device state version %d, want %d", version, stateVersion)
	case size != d.size() && !d.slot:
		return fmt.Errorf("state is of a disk of %d bytes, this one has %d", size, d.size())
	}
	d.changed = size != d.size()
	return nil
}

// Changed reports whether the size of the disk differs from the size in the restored state, which
// the driver knows. The caller must then call the transport's ConfigChanged.
func (d *Device) Changed() bool { return d.changed }
