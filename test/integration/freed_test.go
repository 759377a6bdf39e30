package integration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// TestFreedMemory takes memory in a sandbox and frees it. The host gets the memory back, and the next
// branch does not contain it. Other programs of the guest keep their memory. The same is true for the
// children of branches.
func TestFreedMemory(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.remember(t, box.ID, "kept")
	const taken, kept = 80 << 10, 40 << 10 // KiB; blocks below 128 KiB are not reported
	written := func(id string) uint64 {
		t.Helper()
		s, err := d.Stats(d.ctx(t, quietLimit), id)
		if err != nil {
			t.Fatal(err)
		}
		return s.GuestDirty
	}
	// gone takes memory, frees it, and waits until the host has it back.
	gone := func(id string) {
		t.Helper()
		before := written(id)
		most := d.sh(t, id, fmt.Sprintf("python3 -c 'x = bytearray(b\"x\") * (%d << 10); print(len(x))'", taken))
		if most != fmt.Sprintln(taken<<10) {
			t.Errorf("took %q", most)
		}
		eventually(t, time.Minute, func() error {
			if now := written(id); now > before+kept {
				return fmt.Errorf("%d KiB are written, and were %d before: the memory is not back", now, before)
			}
			return nil
		})
	}
	gone(box.ID)
	for _, mode := range []string{"live", "diff"} {
		name := "freed-" + mode
		b, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: name, Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		if b.DirtyBytes == nil || *b.DirtyBytes > 3*taken/4<<10 {
			t.Errorf("%s: %v bytes of memory are in the branch", mode, b.DirtyBytes)
		}
		child := d.forkOf(t, name, 1)[0]
		d.remembers(t, child.ID, "kept")
		gone(child.ID)
		d.remembers(t, child.ID, "kept")
		d.kill(t, child)
	}
	gone(box.ID) // the sandbox now shares memory with its branches
	d.remembers(t, box.ID, "kept")
	d.kill(t, box)
	d.removeBranches(t)
}
