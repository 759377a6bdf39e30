package tenancy

import (
	"errors"
	"testing"

	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// For a snapshot with memory, DiskOf freezes the file system of a child and branches its disk. For
// a disk-only snapshot, it returns that snapshot. DiskOf leaves nothing else behind.
func TestDiskOf(t *testing.T) {
	h := newHost(t)
	v := h.For(owner.Owner{Name: "token:a"})
	tag, release, err := v.DiskOf(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	if i, err := h.manager.Snapshots().Info(tag); err != nil || !i.DiskOnly || !i.Transient {
		t.Errorf("%+v, %v", i, err)
	}
	if n := len(h.manager.List()); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
	release()
	h.manager.Snapshots().Quiesce()
	var gone *store.NotFoundError
	if _, err := h.manager.Snapshots().Info(tag); !errors.As(err, &gone) {
		t.Errorf("it is left: %v", err)
	}
	f, err := v.Fork(t.Context(), sandbox.ForkRequest{Tag: "p", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	if _, err := v.Branch(t.Context(), id, sandbox.BranchRequest{Tag: "disk", Mode: vm.BranchDisk}); err != nil {
		t.Fatal(err)
	}
	tag, release, err = v.DiskOf(t.Context(), "disk")
	if err != nil || tag != "disk" {
		t.Fatalf("%s, %v", tag, err)
	}
	release()
	for name, view := range map[string]*View{"of nobody": h.For(owner.Owner{}), "of one sandbox": h.Permitted(id),
		"of another team": h.For(owner.Owner{Name: "token:b", Prefix: "team-b/"})} {
		if _, _, err := view.DiskOf(t.Context(), "disk"); !errors.As(err, &gone) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
