package machine

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// countedWires counts ioeventfds.
type countedWires struct {
	noKVM
	added *[]uint64 // addresses
}

func (w countedWires) AddIOEventFD(_ int, gpa uint64, _ bool) error {
	*w.added = append(*w.added, gpa)
	return nil
}

// newDiskOf returns a disk of the given size. The first byte of its content has the given value
// (fill).
func newDiskOf(t *testing.T, size uint64, volume bool, fill byte) Disk {
	t.Helper()
	base, top := memfd(t), memfd(t)
	if err := disklayer.Format(top, size); err != nil {
		t.Fatal(err)
	}
	if _, err := base.WriteAt([]byte{fill}, 0); err != nil {
		t.Fatal(err)
	}
	return Disk{SizeBytes: size, Layers: []*os.File{base, top}, Volume: volume}
}

// newSlotted returns a machine without KVM, and the addresses of its ioeventfds. The machine has a
// disk and two empty volume slots.
func newSlotted(t *testing.T) (*fuzzed, *[]uint64) {
	t.Helper()
	w := newFuzzed(t, newDiskOf(t, fuzzDisk, false, 0), Disk{Volume: true}, Disk{Volume: true})
	added := new([]uint64)
	w.wires = countedWires{added: added}
	t.Cleanup(func() {
		w.pause()
		w.close()
	})
	return w, added
}

func TestVolumeSlotsAreDevices(t *testing.T) {
	w, added := newSlotted(t)
	devices := w.shape().devices
	want := []deviceInSlot{{slotFirstDisk, kindDisk}, {slotFirstDisk + 1, kindVolume}, {slotFirstDisk + 2, kindVolume}}
	if got := devices[slotFirstDisk : slotFirstDisk+len(want)]; !slices.Equal(got, want) {
		t.Errorf("devices %v, want %v", got, want)
	}
	if w.slots[slotFirstDisk+1].notified || !w.slots[slotFirstDisk].notified {
		t.Error("an empty slot has an ioeventfd, or a disk has none")
	}
	// A restore puts a volume into the second slot, and another restore replaces it.
	w.pause()
	for _, size := range []uint64{16 << 20, 8 << 20} {
		disks := []Disk{newDiskOf(t, fuzzDisk, false, 0), {Volume: true}, newDiskOf(t, size, true, 0)}
		if err := w.setDisks(disks); err != nil {
			t.Fatal(err)
		}
		if empty := []bool{w.disks[0].Empty(), w.disks[1].Empty(), w.disks[2].Empty()}; !slices.Equal(empty,
			[]bool{false, true, false}) {
			t.Errorf("empty: %v", empty)
		}
	}
	if at := uint64(boot.VirtioDevice(slotFirstDisk + 2).Addr); len(*added) != 1 || (*added)[0]&^0xfff != at {
		t.Errorf("ioeventfds at %#x, want one at %#x", *added, at)
	}
	for want, disks := range map[string][]Disk{
		"always as many as before": {newDiskOf(t, fuzzDisk, false, 0), {Volume: true}},
		"disk 1: a volume slot and": {newDiskOf(t, fuzzDisk, false, 0), newDiskOf(t, fuzzDisk, false, 0),
			{Volume: true}},
		"disk 0: a volume slot and": {{Volume: true}, {Volume: true}, {Volume: true}},
		"disk 2: open disk: size 5": {newDiskOf(t, fuzzDisk, false, 0), {Volume: true},
			{SizeBytes: 5, Volume: true, Layers: newDiskOf(t, fuzzDisk, true, 0).Layers}},
	} {
		if err := w.setDisks(disks); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	w.must(w.unquiesce())
}

// The guest of a snapshot with an empty slot sees the volume of the restored machine.
func TestVolumeAppearsInARestoredMachine(t *testing.T) {
	from, _ := newSlotted(t)
	const slot, ring, buf = slotFirstDisk + 2, 0x10000, 0x20000
	virtiotest.Start(t, from.mem, from.slots[slot].transport, virtio.FVersion1, ring, 64)
	from.pause()
	s := newStateWriter()
	from.saveDevices(s)
	from.must(from.unquiesce())

	to, _ := newSlotted(t)
	const size = 16 << 20
	restore := func(volume Disk) (status uint32, capacity uint64) {
		t.Helper()
		to.pause()
		to.must(to.setDisks([]Disk{newDiskOf(t, fuzzDisk, false, 0), {Volume: true}, volume}))
		r, err := newStateReader(s.finish())
		to.must(err)
		to.must(to.restoreDevices(r))
		status = to.slots[slot].transport.InterruptStatus().Load()
		var p [8]byte
		to.must(to.mmio(boot.VirtioDevice(slot).Addr+0x100, p[:], false))
		to.must(to.unquiesce())
		return status, binary.LittleEndian.Uint64(p[:]) * 512
	}
	if status, capacity := restore(newDiskOf(t, size, true, 0xab)); status != 2 || capacity != size {
		t.Errorf("interrupt status %d, capacity %d", status, capacity)
	}
	// The driver, which is started in the restored state, reads the volume.
	read := virtiotest.NewRing(t, to.mem, ring, 64, func() {
		w := [4]byte{}
		to.must(to.mmio(boot.VirtioDevice(slot).Addr+0x50, w[:], true))
	})
	to.must(to.mem.WriteAt(make([]byte, 16), buf))
	read.Add(virtiotest.Buf{GPA: buf, Len: 16}, virtiotest.Buf{GPA: buf + 16, Len: 512, Write: true},
		virtiotest.Buf{GPA: buf + 528, Len: 1, Write: true})
	read.Kick()
	read.Wait()
	got := make([]byte, 513)
	to.must(to.mem.ReadAt(got, guestmem.GPA(buf+16)))
	if want := append([]byte{0xab}, make([]byte, 512)...); !bytes.Equal(got, want) {
		t.Errorf("the guest reads %x… with status %d", got[:4], got[512])
	}
	if status, capacity := restore(Disk{Volume: true}); status != 0 || capacity != 0 {
		t.Errorf("an empty slot as before: interrupt status %d, capacity %d", status, capacity)
	}
}

// A branch has tops for the disk and the volume, and none for the empty slot.
func TestBranchSwapsTheTopsOfVolumes(t *testing.T) {
	w, _ := newSlotted(t)
	w.pause()
	disk, volume := newDiskOf(t, fuzzDisk, false, 0), newDiskOf(t, 8<<20, true, 0)
	var frozen []*os.File
	for _, d := range []Disk{disk, volume} {
		f, err := disklayer.Reopen(d.Layers[1])
		w.must(err)
		frozen = append(frozen, f)
	}
	w.must(w.setDisks([]Disk{disk, {Volume: true}, volume}))
	top := func(size uint64) *os.File { return newDiskOf(t, size, true, 0).Layers[1] }
	wrong := BranchConfig{Tops: []*os.File{top(fuzzDisk)}, Frozen: frozen[:1]}
	if err := w.swapTops(&wrong); err == nil || !strings.Contains(err.Error(), "for 2 disks") {
		t.Errorf("one top for two disks: %v", err)
	}
	// If one of the tops does not fit, no disk gets a new top.
	wrong = BranchConfig{Tops: []*os.File{top(fuzzDisk), top(4 << 20)}, Frozen: frozen}
	if err := w.swapTops(&wrong); err == nil || !strings.Contains(err.Error(), "disk 2") || len(wrong.Tops) != 2 ||
		w.topSwaps != 0 {
		t.Errorf("a top of another size: %v, %d tops are left", err, len(wrong.Tops))
	}
	right := BranchConfig{Tops: []*os.File{top(fuzzDisk), top(8 << 20)}, Frozen: frozen}
	if err := w.swapTops(&right); err != nil || len(right.Tops) != 0 || w.topSwaps != 1 {
		t.Errorf("%v, %d tops are left", err, len(right.Tops))
	}
	w.must(w.unquiesce())
}

// When a volume is put into a slot of a running machine, or removed, the driver is told the new
// capacity. Only volume slots can change.
func TestSetVolume(t *testing.T) {
	w, _ := newSlotted(t)
	const slot, size = slotFirstDisk + 2, 8 << 20
	virtiotest.Start(t, w.mem, w.slots[slot].transport, virtio.FVersion1, 0x10000, 64)
	register := func(offset uint64) uint32 {
		var p [4]byte
		w.must(w.mmio(boot.VirtioDevice(slot).Addr+guestmem.GPA(offset), p[:], false))
		return binary.LittleEndian.Uint32(p[:])
	}
	set := func(i int, d Disk) error {
		w.pause()
		err := w.setVolume(i, d)
		w.must(w.unquiesce())
		return err
	}
	for what, c := range map[string]struct {
		disk int
		d    Disk
	}{
		"it is no volume slot":        {0, newDiskOf(t, fuzzDisk, true, 0)},
		"there are 3 disks":           {3, Disk{Volume: true}},
		"there are 3 disks ":          {-1, Disk{Volume: true}},
		"slot is empty already":       {2, Disk{Volume: true}},
		"want at least a base image":  {2, Disk{SizeBytes: size, Layers: newDiskOf(t, size, true, 0).Layers[:1]}},
		"want a positive multiple of": {2, Disk{SizeBytes: 5, Layers: newDiskOf(t, size, true, 0).Layers}},
	} {
		if err := set(c.disk, c.d); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(what)) {
			t.Errorf("want %q in %v", what, err)
		}
	}
	if w.volumes() != 0 || register(0xfc) != 0 {
		t.Errorf("after errors: volumes %b, generation %d", w.volumes(), register(0xfc))
	}
	for i, d := range []Disk{newDiskOf(t, size, true, 0), {Volume: true}, newDiskOf(t, size/2, true, 0)} {
		w.must(set(2, d))
		if sectors := register(0x100); uint64(sectors) != d.SizeBytes/512 {
			t.Errorf("change %d: %d sectors, want %d bytes", i, sectors, d.SizeBytes)
		}
		if status, generation := w.slots[slot].transport.InterruptStatus().Swap(0), register(0xfc); status != 2 ||
			generation != uint32(i+1) {
			t.Errorf("change %d: interrupt status %d, generation %d", i, status, generation)
		}
		if want := uint32(1 - i%2); w.volumes() != want<<1 {
			t.Errorf("change %d: volumes %b", i, w.volumes())
		}
	}
	second := newDiskOf(t, size, true, 0)
	if err := set(2, second); err == nil || !strings.Contains(err.Error(), "has a disk already") {
		t.Errorf("a second volume in a slot: %v", err)
	}
	if _, err := second.Layers[0].Stat(); err == nil {
		t.Error("the files of a refused volume are open")
	}
}
