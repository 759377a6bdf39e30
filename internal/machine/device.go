package machine

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/boot"
	"github.com/forkd/forkd/internal/kvm"
	"github.com/forkd/forkd/internal/virtio"
	"github.com/forkd/forkd/internal/virtio/mmio"
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

func (m *Machine) addFixedDevices() (err error) {
	if m.genIntr, err = m.newIRQ(boot.VMGenIDGSI); err != nil {
		return err
	}
	irq, err := m.newIRQ(boot.SerialGSI)
	if err != nil {
		return err
	}
	m.serial = newSerial(m.cfg.Console, irq)
	return nil
}

func (m *Machine) addDisks(disks []Disk) error { return nil }
