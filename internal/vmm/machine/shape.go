package machine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/boot"
)

const shapeVersion = 1

// machineShape is the first section of a saved state. A machine can restore the state only if the
// machine has the same shape and devices.
type machineShape struct {
	vm.Shape
	devices []deviceInSlot // in ascending order of slots
}

// deviceInSlot is the kind of device in a slot of the machine.
type deviceInSlot struct {
	slot uint8
	kind string
}

// String returns the name by which messages refer to the device. The section with the device's
// state has the same name.
func (d deviceInSlot) String() string { return d.kind + " in slot " + strconv.Itoa(int(d.slot)) }

// shape returns the shape of this machine.
func (m *Machine) shape() *machineShape {
	s := &machineShape{Shape: m.cfg.Shape}
	for i, slot := range m.slots {
		if slot != nil {
			s.devices = append(s.devices, deviceInSlot{uint8(i), slot.kind})
		}
	}
	return s
}

// Save appends the shape.
func (s *machineShape) Save(w *codec.Writer) {
	w.U32(shapeVersion)
	w.U64(s.MemoryBytes)
	w.U32(s.VCPUs)
	w.String(s.Template)
	w.U32(uint32(len(s.devices)))
	for _, d := range s.devices {
		w.U8(d.slot)
		w.String(d.kind)
	}
}

// Restore reads the shape that Save wrote.
func (s *machineShape) Restore(r *codec.Reader) error {
	if v := r.U32(); v != shapeVersion {
		return errors.Join(fmt.Errorf("machine shape version %d, want %d", v, shapeVersion), r.Err())
	}
	s.Shape = vm.Shape{MemoryBytes: r.U64(), VCPUs: r.U32(), Template: r.String()}
	const least = 1 + 4 // bytes of a device, without its kind
	n := r.Count(least)
	if n > boot.MaxVirtioDevices {
		return fmt.Errorf("machine shape has %d devices, at most %d", n, boot.MaxVirtioDevices)
	}
	s.devices = make([]deviceInSlot, n)
	for i := range s.devices {
		s.devices[i] = deviceInSlot{slot: r.U8(), kind: r.String()}
	}
	return r.Err()
}

// fitShape reads the shape of a saved machine, and returns an error if this machine has a different
// shape. If the saved machine has no balloon, fitShape first removes the balloon of this machine.
func (m *Machine) fitShape(r *codec.Reader) error {
	var saved machineShape
	if err := saved.Restore(r); err != nil {
		return err
	}
	if !slices.Contains(saved.devices, deviceInSlot{slotBalloon, kindBalloon}) {
		if err := m.removeBalloon(); err != nil {
			return err
		}
	}
	return m.shape().check(&saved)
}

// check returns an error if the saved shape differs from s.
func (s *machineShape) check(saved *machineShape) error {
	if saved.Shape != s.Shape {
		return vm.WithCode(vm.ErrShape, fmt.Errorf("snapshot of a machine with %d bytes of memory, %d vCPUs, "+
			"CPU template %q; this one has %d, %d, %q",
			saved.MemoryBytes, saved.VCPUs, saved.Template, s.MemoryBytes, s.VCPUs, s.Template))
	}
	if slices.Equal(saved.devices, s.devices) {
		return nil // returns early, because every fork waits for check, and the comparison below is slow
	}
	for i := range max(len(saved.devices), len(s.devices)) {
		was, is := deviceAt(saved.devices, i), deviceAt(s.devices, i)
		if was != is {
			return vm.WithCode(vm.ErrShape, fmt.Errorf("snapshot of a machine with %s where this forkd has %s: "+
				"use the forkd that made the snapshot, or bake it again", was, is))
		}
	}
	return nil
}

// deviceAt describes the device at index i of a list, or says that there is none.
func deviceAt(list []deviceInSlot, i int) string {
	if i < len(list) {
		return fmt.Sprintf("%q", list[i])
	}
	return "no more devices"
}
