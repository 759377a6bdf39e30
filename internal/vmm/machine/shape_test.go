package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
)

func sampleShape() *machineShape {
	return &machineShape{
		Shape: vm.Shape{MemoryBytes: 1 << 30, VCPUs: 2, Template: "t"},
		devices: []deviceInSlot{{slotVsock, kindVsock}, {slotRNG, kindRNG}, {slotNet, kindNet},
			{slotFirstDisk, kindDisk}},
	}
}

// A snapshot can only be restored in a machine of the same shape, with the same devices. For any
// other machine, the error names the difference.
func TestShapeIsThatOfTheSnapshot(t *testing.T) {
	for want, change := range map[string]func(s *machineShape){
		"":                               func(*machineShape) {},
		"2147483648 bytes":               func(s *machineShape) { s.MemoryBytes = 2 << 30 },
		"3 vCPUs":                        func(s *machineShape) { s.VCPUs = 3 },
		`template "u"`:                   func(s *machineShape) { s.Template = "u" },
		`"gpu in slot 2" where this`:     func(s *machineShape) { s.devices[2].kind = "gpu" },
		`forkd has "net in slot 2": use`: func(s *machineShape) { s.devices = slices.Delete(s.devices, 2, 3) },
		`"disk in slot 4" where this`:    func(s *machineShape) { s.devices[3].slot++ },
		`no more devices where this`:     func(s *machineShape) { s.devices = s.devices[:3] },
		`where this forkd has no more d`: func(s *machineShape) { s.devices = append(s.devices, deviceInSlot{9, kindDisk}) },
	} {
		saved := sampleShape()
		change(saved)
		var w codec.Writer
		saved.Save(&w)
		r, read := codec.NewReader(w.Bytes()), machineShape{}
		if err := errors.Join(read.Restore(r), r.Done()); err != nil {
			t.Error(err)
		}
		err := sampleShape().check(&read)
		if want == "" {
			if err != nil {
				t.Errorf("its own shape is refused: %v", err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, vm.ErrShape) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

// The shape contains the devices of a machine. The slot of the network does not count as a disk.
func TestShapeListsTheDevicesOfTheMachine(t *testing.T) {
	m := &Machine{slots: make([]*slot, slotFirstDisk+1)}
	m.slots[slotNet] = &slot{kind: kindNet}
	m.slots[slotFirstDisk] = &slot{kind: kindDisk}
	got := m.shape().devices
	if len(got) != 2 || got[0] != (deviceInSlot{slotNet, kindNet}) || got[1] != (deviceInSlot{slotFirstDisk, kindDisk}) {
		t.Errorf("devices %v", got)
	}
	if a, b := m.slots[slotNet].section(slotNet), m.slots[slotFirstDisk].section(slotFirstDisk); a == b {
		t.Errorf("two sections are called %q", a)
	}
}
