package sandbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

func TestPromote(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.branch(t, id, "before", vm.BranchDiff)
	forked, _, err := w.ForkSandbox(t.Context(), id, BranchRequest{Mode: vm.BranchDiff}, ForkRequest{N: 1})
	if err != nil {
		t.Fatal(err)
	}
	child := forked.Sandboxes[0].ID
	r, err := w.Promote(t.Context(), id, child, BranchRequest{Mode: vm.BranchDiff}, unique.AsBefore)
	if err != nil {
		t.Fatal(err)
	}
	if r.Info.ID != id || r.Info.State != Running || r.Info.SnapshotTag != r.Tag {
		t.Errorf("%+v", r)
	}
	for _, other := range []string{child, id} { // both sandboxes continue, and can be branched
		w.branch(t, other, "after-"+other, vm.BranchDiff)
	}
	if err := w.Kill(child); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"", "before"} { // rollbacks need neither the child nor the snapshot of its fork
		if _, err := w.Rollback(t.Context(), id, to, unique.AsBefore); err != nil {
			t.Errorf("roll back to %q: %v", to, err)
		}
	}
	for _, i := range w.cfg.Store.List() {
		if strings.HasPrefix(i.Tag, "branch-") {
			t.Errorf("%s is left, though no sandbox runs from it", i.Tag)
		}
	}
	kept := w.fork(t, "before")
	r, err = w.Promote(t.Context(), id, kept, BranchRequest{Mode: vm.BranchDiff, Tag: "winner"}, unique.AsBefore)
	if err != nil || r.Tag != "winner" {
		t.Fatalf("with a tag: %+v, %v", r, err)
	}
	w.KillAll()
	if _, err := w.cfg.Store.Info("winner"); err != nil {
		t.Errorf("a branch with a tag has gone with its sandboxes: %v", err)
	}
}

// A promotion that cannot succeed is refused before it makes a branch.
func TestPromoteIsRefused(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	another := w.bake
	another.Tag = "other"
	if _, err := w.Bake(t.Context(), another); err != nil {
		t.Fatal(err)
	}
	stranger := w.fork(t, "other")
	before := len(w.cfg.Store.List())
	var family *failure.FamilyError
	if _, err := w.Promote(t.Context(), id, stranger, BranchRequest{}, unique.AsBefore); !errors.As(err, &family) {
		t.Errorf("from another family: %v", err)
	}
	var bad *invalid.Error
	_, err := w.Promote(t.Context(), id, id, BranchRequest{}, unique.AsBefore)
	if !errors.As(err, &bad) || bad.Field != "from" {
		t.Errorf("from itself: %v", err)
	}
	var none *NotFoundError
	for _, c := range [][2]string{{id, "sb-none"}, {"sb-none", id}} {
		if _, err := w.Promote(t.Context(), c[0], c[1], BranchRequest{}, unique.AsBefore); !errors.As(err, &none) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if after := len(w.cfg.Store.List()); after != before {
		t.Errorf("%d snapshots became %d", before, after)
	}
	w.KillAll()
	w.checkClean(t)
}
