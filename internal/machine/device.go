package machine

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/agentproto"
	"github.com/forkd/forkd/internal/boot"
	"github.com/forkd/forkd/internal/kvm"
	"github.com/forkd/forkd/internal/virtio"
	"github.com/forkd/forkd/internal/virtio/blk"
	"github.com/forkd/forkd/internal/virtio/mmio"
	"github.com/forkd/forkd/internal/virtio/rng"
	"github.com/forkd/forkd/internal/virtio/vsock"
)

// Slots of the virtio devices. A slot gives a device its register window and its interrupt, which are part of every
// snapshot. The network's seat is kept for it.
const (
	slotVsock     = 0
	slotRNG       = 1
	slotNet       = 2
	slotFirstDisk = 3

	maxDisks = boot.MaxVirtioDevices - slotFirstDisk
)

// slot is one virtio device of the machine.
type slot struct {
	transport *mmio.Transport
	irq       *virtio.EventFD
}

// slotName names the device of slot i in a saved state.
func slotName(i int) string {
	switch i {
	case slotVsock:
		return "vsock"
	case slotRNG:
		return "rng"
	}
	return fmt.Sprintf("disk%d", i-slotFirstDisk)
}

// newIRQ returns an eventfd that raises an edge on gsi.
func (m *Machine) newIRQ(gsi uint32) (*virtio.EventFD, error) {
	e, err := virtio.NewEventFD()
	if err != nil {
		return nil, err
	}
	if err := m.vm.AddIRQFD(e.FD(), gsi); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// addDevice puts dev into slot i, quiesced as all devices of a paused machine are.
func (m *Machine) addDevice(i int, dev virtio.Device) error {
	place := boot.VirtioDevice(i)
	irq, err := m.newIRQ(place.GSI)
	if err != nil {
		return err
	}
	t, err := mmio.New(m.mem, dev, irq)
	if err != nil {
		return errors.Join(err, irq.Close())
	}
	t.Quiesce()
	m.slots[i] = &slot{transport: t, irq: irq}
	anyLength, err := m.cfg.KVM.Extension(kvm.CapIOEventFDAnyLength)
	if err != nil {
		return err
	}
	return m.vm.AddIOEventFD(t.NotifyFD(), uint64(place.Addr)+mmio.RegQueueNotify, anyLength > 0)
}

// mmioDevices lists the devices for the guest's ACPI tables.
func (m *Machine) mmioDevices() []boot.MMIODevice {
	var list []boot.MMIODevice
	for i, s := range m.slots {
		if s != nil {
			list = append(list, boot.VirtioDevice(i))
		}
	}
	return list
}

func (m *Machine) quiesce() {
	for _, s := range m.slots {
		if s != nil {
			s.transport.Quiesce()
		}
	}
}

func (m *Machine) unquiesce() error {
	for _, s := range m.slots {
		if s != nil {
			if err := s.transport.Unquiesce(); err != nil {
				return err
			}
		}
	}
	return nil
}

// addFixedDevices makes what every machine has, whatever it boots.
func (m *Machine) addFixedDevices() (err error) {
	if m.genIntr, err = m.newIRQ(boot.VMGenIDGSI); err != nil {
		return err
	}
	irq, err := m.newIRQ(boot.SerialGSI)
	if err != nil {
		return err
	}
	m.serial = newSerial(m.cfg.Console, irq)
	socket, err := vsock.New(vsock.Config{
		GuestCID: agentproto.GuestCID, Listener: m.cfg.VsockListener, Dial: m.cfg.GuestConn,
	})
	if err != nil {
		return err
	}
	if err := m.addDevice(slotVsock, socket); err != nil {
		return err
	}
	return m.addDevice(slotRNG, rng.New())
}

// setDisks makes the disks, or replaces those of a machine that is restored again. Their files become the machine's.
func (m *Machine) setDisks(disks []Disk) error {
	again := len(m.disks) > 0
	if len(disks) > maxDisks || again && len(disks) != len(m.disks) {
		return fmt.Errorf("%d disks: at most %d, and always as many as before", len(disks), maxDisks)
	}
	for i, d := range disks {
		// No sync: a sandbox's top is scratch until a branch makes it a layer, and the store syncs layers.
		overlay, err := blk.NewOverlay(d.Layers, d.SizeBytes, d.ReadOnly, true)
		if err != nil {
			return fmt.Errorf("disk %d: %w", i, err)
		}
		if again {
			if err = m.disks[i].SetDisk(overlay); err != nil {
				_ = overlay.Close()
			}
		} else {
			m.disks = append(m.disks, blk.New(overlay, slotName(slotFirstDisk+i)))
			err = m.addDevice(slotFirstDisk+i, m.disks[i])
		}
		if err != nil {
			return fmt.Errorf("disk %d: %w", i, err)
		}
	}
	return nil
}
