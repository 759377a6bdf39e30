package sandbox

import (
	"testing"

	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// The pool forgets snapshots that are replaced, and transient snapshots that the store deletes. If
// it kept them, the pool would grow with each fork of a sandbox, and keep VMs of shapes that no
// snapshot has any more.
func TestPoolForgetsSnapshotsThatAreGone(t *testing.T) {
	w := newWorld(t, 1)
	defer w.stop()
	booted := w.boots(t)
	id := w.source(t)
	end := func(id string) {
		t.Helper()
		if err := w.Kill(id); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		r, _, err := w.ForkSandbox(t.Context(), id, BranchRequest{Mode: vm.BranchDiff}, ForkRequest{N: 1})
		if err != nil {
			t.Fatal(err)
		}
		end(r.Sandboxes[0].ID)
	}
	w.branch(t, id, "disk", vm.BranchDisk)
	end(w.fork(t, "disk"))
	w.branch(t, id, "again", vm.BranchDiff)
	end(w.fork(t, "again"))
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "again", Mode: vm.BranchDiff, Replace: true}); err != nil {
		t.Fatal(err)
	}
	end(id)
	w.Snapshots().Quiesce()
	if n := w.PoolWanted(); n != 1 || booted() != 1 {
		t.Errorf("the pool keeps %d VMs, want 1: that of the parent; %d boots", n, booted())
	}
	for _, tag := range []string{"again", "disk", "p"} {
		if err := w.DeleteSnapshot(tag, store.DeleteSingle); err != nil {
			t.Fatal(err)
		}
	}
	if left := w.Snapshots().List(); len(left) != 0 {
		t.Fatalf("snapshots are left: %+v", left)
	}
	if n := w.PoolWanted(); n != 0 {
		t.Errorf("there is no snapshot any more, and the pool keeps %d VMs", n)
	}
}
