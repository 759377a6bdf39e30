package machine

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/vmm/virtio/blk"
)

// SetVolume puts the disk d into an empty volume slot or, if d has no layers, empties a slot that
// has a disk. The guest is stopped meanwhile. It gets an interrupt because the capacity of its
// device has changed (virtio 1.2 §5.2.6). The number i is the index of the slot among all disks,
// also those that are not slots. SetVolume takes ownership of the files. After an error the slot is
// unchanged.
//
// Requests that have not been answered yet are served with the new disk. A guest that removes a
// disk unmounts it first, and then has no such requests. If a guest does not unmount the disk, its
// requests are like requests to a disk that was unplugged.
func (m *Machine) SetVolume(i int, d Disk) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.atRest(func(bool) error { return m.setVolume(i, d) })
	return err
}

// setVolume does the work of SetVolume. Preconditions: the machine is paused.
func (m *Machine) setVolume(i int, d Disk) (err error) {
	var overlay *blk.Overlay
	if len(d.Layers) > 0 {
		if overlay, err = blk.NewOverlay(d.Layers, d.SizeBytes); err != nil {
			return fmt.Errorf("disk %d: %w", i, err)
		}
	}
	if err := m.checkVolume(i, overlay == nil); err != nil {
		if overlay != nil {
			_ = overlay.Close() // unused
		}
		return fmt.Errorf("disk %d: %w", i, err)
	}
	if err := m.replaceDisk(i, true, overlay); err != nil {
		return fmt.Errorf("disk %d: %w", i, err)
	}
	return m.slots[slotFirstDisk+i].transport.ConfigChanged()
}

// checkVolume checks that disk i is a volume slot, and that the slot has a disk if it will be
// emptied, or no disk if it will be filled.
func (m *Machine) checkVolume(i int, empty bool) error {
	switch {
	case i < 0 || i >= len(m.disks):
		return fmt.Errorf("there are %d disks", len(m.disks))
	case m.slots[slotFirstDisk+i].kind != kindVolume:
		return errors.New("it is no volume slot")
	case empty && m.disks[i].Empty():
		return errors.New("the volume slot is empty already")
	case !empty && !m.disks[i].Empty():
		return errors.New("the volume slot has a disk already")
	}
	return nil
}

// volumes returns a set of the volume slots that have disks: bit n is slot n.
func (m *Machine) volumes() (set uint32) {
	n := 0
	for i, d := range m.disks {
		if m.slots[slotFirstDisk+i].kind != kindVolume {
			continue
		}
		if !d.Empty() {
			set |= 1 << n
		}
		n++
	}
	return set
}
