package net

import (
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
)

// stateVersion changes whenever the layout of Save changes.
const stateVersion = 1

// Save implements virtio.Stater. It does not save the peer, because each copy of the machine gets a
// peer of its own.
func (d *Device) Save(w *codec.Writer) { w.U32(stateVersion) }

// Restore implements virtio.Stater.
func (d *Device) Restore(r *codec.Reader) error {
	if v := r.U32(); r.Err() == nil && v != stateVersion {
		return fmt.Errorf("network device state version %d, want %d", v, stateVersion)
	}
	return r.Err()
}
