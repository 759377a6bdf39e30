package machine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
)

// volumeUsed is the number of bytes of a volume that the tests use.
const volumeUsed = 64 << 10

// newVolume returns the base image of a volume with known content.
func (h *host) newVolume(t *testing.T, seed uint64) string {
	t.Helper()
	path := filepath.Join(h.dir, fmt.Sprint("volume", seed))
	p := make([]byte, diskSize)
	copy(p, pattern(seed, volumeUsed))
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantVolume waits until the guest sees a volume with the given content in a slot.
func (v *testVM) wantVolume(t *testing.T, slot int, seed uint64, what string) {
	t.Helper()
	v.wantCapacity(t, slot, diskSize, what)
	if got, want := v.call(t, "volume %d %d", slot, volumeUsed), checksum(pattern(seed, volumeUsed)); got != want {
		t.Errorf("%s: the volume in slot %d has checksum %s, want %s", what, slot, got, want)
	}
}

// wantCapacity waits until the guest sees the given capacity. The guest's kernel reads the capacity
// some time after the interrupt.
func (v *testVM) wantCapacity(t *testing.T, slot, want int, what string) {
	t.Helper()
	end := time.Now().Add(patience)
	for v.call(t, "capacity %d", slot) != fmt.Sprint(want) {
		if time.Now().After(end) {
			t.Fatalf("%s: slot %d has %s bytes, want %d", what, slot, v.call(t, "capacity %d", slot), want)
		}
	}
}

// with returns a copy of a snapshot whose slots have the given volumes.
func (s *snapshot) with(v ...[]string) *snapshot {
	c := *s
	c.volumes = v
	return &c
}

// If a guest was saved with empty slots, each of its copies sees the volumes of its own machine. A
// branch has the content of the volumes at its instant. A rollback brings volumes back, replaces
// them, or takes them away.
func TestVolumes(t *testing.T) {
	forVCPUs(t, []int{1, 2}, func(t *testing.T, h *host) {
		h.slots = 2
		parent := h.boot(t)
		saved := newModel(t, parent, 1)
		for slot := range h.slots {
			parent.wantCapacity(t, slot, 0, "parent")
		}
		empty := parent.save(t)
		one, two := []string{h.newVolume(t, 21)}, []string{h.newVolume(t, 22)}

		child := h.fork(t, empty.with(nil, one))
		child.wantVolume(t, 1, 21, "child")
		child.wantCapacity(t, 0, 0, "child")
		saved.check(t, child, "child")
		child.call(t, "write-volume 1 %d 23", volumeUsed) // ends with a flush
		child.wantVolume(t, 1, 23, "child that has written")

		branch := child.branch(t, empty, vm.BranchDiff)
		child.call(t, "write-volume 1 %d 24", volumeUsed)
		grandchild := h.fork(t, branch)
		grandchild.wantVolume(t, 1, 23, "grandchild")
		saved.check(t, grandchild, "grandchild")
		grandchild.call(t, "write-volume 1 %d 25", volumeUsed)
		child.wantVolume(t, 1, 24, "child beside the grandchild")

		for _, c := range []struct {
			to   *snapshot
			want [2]uint64 // seeds; 0: the slot is empty
			what string
		}{
			{branch, [2]uint64{0, 23}, "rolled back to the branch"},
			{empty.with(one, two), [2]uint64{21, 22}, "with two volumes"},
			{empty.with(two, nil), [2]uint64{22, 0}, "with the second volume in the first slot"},
			{empty, [2]uint64{0, 0}, "without volumes"},
		} {
			child.restore(t, c.to)
			for slot, seed := range c.want {
				if seed == 0 {
					child.wantCapacity(t, slot, 0, c.what)
				} else {
					child.wantVolume(t, slot, seed, c.what)
				}
			}
			saved.check(t, child, c.what)
		}
		grandchild.wantVolume(t, 1, 25, "grandchild at the end")

		// A running guest gets a volume, writes to it, loses it and gets another one.
		for _, seed := range []uint64{21, 22} {
			child.set(t, 0, h.newVolume(t, seed))
			child.wantVolume(t, 0, seed, "attached")
			child.wantCapacity(t, 1, 0, "beside an attached volume")
			child.call(t, "write-volume 0 %d 26", volumeUsed)
			child.wantVolume(t, 0, 26, "attached, and written")
			if seed == 22 {
				break
			}
			child.set(t, 0)
			child.wantCapacity(t, 0, 0, "detached")
		}
		attached := child.branch(t, empty, vm.BranchDiff)
		last := h.fork(t, attached)
		last.wantVolume(t, 0, 26, "a child of a branch with an attached volume")
		saved.check(t, last, "the same child")
		child.restore(t, empty)
		child.wantCapacity(t, 0, 0, "rolled back to a moment before the volume")
	})
}

// set puts a volume with the given base image into a slot of a running VM, or empties the slot.
func (v *testVM) set(t *testing.T, slot int, base ...string) {
	t.Helper()
	v.volumes = slices.Clone(v.volumes)
	if v.volumes[slot] = base; len(base) > 0 {
		v.volumes[slot] = append(base, v.host.newTop(t))
	}
	if err := v.SetVolume(1+slot, disks(t, nil, v.volumes[slot])[1]); err != nil {
		t.Fatal(err)
	}
}
