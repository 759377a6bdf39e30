package machine

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/balloon"
	"github.com/forkd/forkd/internal/vmm/virtio/blk"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/net"
	"github.com/forkd/forkd/internal/vmm/virtio/rng"
	"github.com/forkd/forkd/internal/vmm/virtio/vsock"
)

// Slots of the virtio devices. A device's slot determines its register window and its interrupt.
// The guest knows the window and the interrupt, so after a restore every device must be in its
// former slot.
const (
	slotVsock     = 0
	slotRNG       = 1
	slotNet       = 2
	slotFirstDisk = 3
	slotBalloon   = boot.MaxVirtioDevices - 1 // the last slot, because older snapshots have no balloon

	maxDisks = slotBalloon - slotFirstDisk
)

// slot is one virtio device of the machine with its transport.
type slot struct {
	kind      string
	dev       virtio.Device
	transport *mmio.Transport
	notified  bool // whether KVM signals the transport when the driver notifies the device, see notify
}

// Kinds of devices. Saved states contain these names.
const (
	kindVsock   = "vsock"
	kindRNG     = "rng"
	kindNet     = "net"
	kindDisk    = "disk"
	kindBalloon = "balloon"
	kindVolume  = "volume"
)

// section returns the name of the section for the device in slot i.
func (s *slot) section(i int) string { return deviceInSlot{uint8(i), s.kind}.String() }

// wires connects devices with the guest through KVM.
type wires interface {
	Line(gsi uint32) virtio.Interrupt // returns an interrupt line, whose Raise raises an edge
	AddIOEventFD(eventfd int, gpa uint64, anyLength bool) error
}

type kvmWires struct{ *kvm.VM }

func (w kvmWires) Line(gsi uint32) virtio.Interrupt { return w.VM.Line(gsi) }

// addDevice puts a device into slot i, and calls notify. The device is quiesced until the machine
// runs.
func (m *Machine) addDevice(i int, kind string, dev virtio.Device) error {
	if err := m.addSilent(i, kind, dev); err != nil {
		return err
	}
	return m.notify(i)
}

// addSilent is like addDevice, but does not call notify. It is for devices that guests use rarely or
// not at all, because notify is slow.
func (m *Machine) addSilent(i int, kind string, dev virtio.Device) error {
	t, err := mmio.New(m.mem, dev, m.wires.Line(boot.VirtioDevice(i).GSI))
	if err != nil {
		return err
	}
	t.Quiesce()
	m.slots[i] = &slot{kind: kind, dev: dev, transport: t}
	return nil
}

// notify makes KVM signal the transport in slot i when the driver notifies the device, and lets vCPU
// threads handle the registers that a driver accesses at every interrupt. Without this, each
// notification and each of these accesses is an exit to the machine.
func (m *Machine) notify(i int) error {
	s, at := m.slots[i], uint64(boot.VirtioDevice(i).Addr)
	if s.notified {
		return nil
	}
	status := s.transport.InterruptStatus()
	m.registers = append(m.registers, kvm.Register{GPA: at + mmio.RegInterruptStatus, Word: status},
		kvm.Register{GPA: at + mmio.RegInterruptACK, Word: status, Clear: true})
	err := m.wires.AddIOEventFD(s.transport.NotifyFD(), at+mmio.RegQueueNotify, m.anyLength)
	s.notified = err == nil
	return err
}

// mmioDevices returns the devices for the guest's ACPI tables.
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

// addFixedDevices adds the devices that every machine has.
func (m *Machine) addFixedDevices() error {
	m.genIntr = m.wires.Line(boot.VMGenIDGSI)
	m.serial = newSerial(m.cfg.Console, m.wires.Line(boot.SerialGSI))
	socket, err := vsock.New(vsock.Config{
		GuestCID: agentproto.GuestCID, Listener: m.cfg.VsockListener, Dial: m.cfg.GuestConn,
	})
	if err != nil {
		return err
	}
	if err := m.addDevice(slotVsock, kindVsock, socket); err != nil {
		return err
	}
	if m.net, err = net.New(); err != nil {
		return err
	}
	err = m.addSilent(slotBalloon, kindBalloon, balloon.New(balloon.Config{
		Release: m.mem.Release, Held: m.frozen.Load,
	}))
	return errors.Join(err, m.addDevice(slotRNG, kindRNG, rng.New()), m.addDevice(slotNet, kindNet, m.net))
}

// removeBalloon removes the balloon before the restore of a snapshot from an earlier version, whose
// guest does not know this device.
//
// Preconditions: the machine is paused.
func (m *Machine) removeBalloon() error {
	s := m.slots[slotBalloon]
	if s == nil {
		return nil
	}
	m.slots[slotBalloon] = nil
	return s.transport.Close()
}

// thaw lets the balloon release memory again, unless pages are still frozen.
//
// Preconditions: m.mu is held.
func (m *Machine) thaw() {
	s := m.slots[slotBalloon]
	if s == nil || !m.frozen.Load() || m.copying != nil || m.kept != nil {
		return
	}
	// Exclusive fails only after Close, when the machine is ending.
	_ = s.transport.Exclusive(func() { m.frozen.Store(false) })
}

// SetNet replaces the machine's network peer and closes the previous one. A nil peer disconnects
// the network. The guest may be running.
func (m *Machine) SetNet(peer *net.Peer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slots[slotNet].transport.Exclusive(func() { m.net.SetPeer(peer) })
}

// setDisks creates the disks, and takes ownership of their files. If the machine already has disks,
// because it is rolled back, setDisks replaces them.
func (m *Machine) setDisks(disks []Disk) error {
	again := len(m.disks) > 0
	if len(disks) > maxDisks || again && len(disks) != len(m.disks) {
		return fmt.Errorf("%d disks: at most %d, and always as many as before", len(disks), maxDisks)
	}
	for i, d := range disks {
		var overlay *blk.Overlay
		var err error
		if !d.Volume || len(d.Layers) > 0 {
			overlay, err = blk.NewOverlay(d.Layers, d.SizeBytes)
		}
		if err == nil && again {
			err = m.replaceDisk(i, d.Volume, overlay)
		} else if err == nil {
			err = m.addDisk(i, d.Volume, overlay)
		}
		if err != nil {
			return fmt.Errorf("disk %d: %w", i, err)
		}
	}
	return nil
}

// addDisk adds the device of disk i. The machine owns the overlay, even after an error. The overlay
// of an empty volume slot is nil.
func (m *Machine) addDisk(i int, volume bool, overlay *blk.Overlay) error {
	slot := slotFirstDisk + i
	if !volume {
		m.disks = append(m.disks, blk.New(overlay, fmt.Sprintf("disk%d", i), m.diskFull))
		return m.addDevice(slot, kindDisk, m.disks[i])
	}
	n := 0 // number of volume slots before this one
	for _, s := range m.slots[slotFirstDisk:slot] {
		n += btoi(s.kind == kindVolume)
	}
	m.disks = append(m.disks, blk.NewSlot(agentproto.VolumeSerial(n), m.diskFull))
	if err := m.addSilent(slot, kindVolume, m.disks[i]); err != nil {
		if overlay != nil {
			_ = overlay.Close()
		}
		return err
	}
	return m.replaceDisk(i, volume, overlay)
}

// replaceDisk gives the device of disk i another overlay. If the overlay is nil, the volume slot
// becomes empty. The machine owns the overlay, even after an error.
func (m *Machine) replaceDisk(i int, volume bool, overlay *blk.Overlay) error {
	slot := slotFirstDisk + i
	err := errors.New("a volume slot and a disk cannot replace each other")
	if volume == (m.slots[slot].kind == kindVolume) {
		err = m.disks[i].SetDisk(overlay)
	}
	if err != nil {
		if overlay != nil {
			_ = overlay.Close()
		}
		return err
	}
	if overlay == nil {
		return nil
	}
	return m.notify(slot)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
