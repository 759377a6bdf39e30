package sandbox

import (
	"testing"

	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

// callsOf returns the tag of a sandbox's latest snapshot, and the number of calls since then (-1 if unknown).
// It reads both from the sandbox's Info.
func (w *world) callsOf(t *testing.T, id string) (at string, calls int) {
	t.Helper()
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	i := s.Info()
	if i.Calls == nil {
		return i.At.Tag, -1
	}
	return i.At.Tag, int(*i.Calls)
}

func (w *world) wantCalls(t *testing.T, when, id, at string, calls int) {
	t.Helper()
	if tag, n := w.callsOf(t, id); tag != at || n != calls {
		t.Errorf("%s: at %q with %d calls, want %q with %d", when, tag, n, at, calls)
	}
}

// A branch or a rollback resets the count of calls to zero. Other operations do not change it.
func TestCallsSinceTheLatestSnapshot(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	use := func() {
		t.Helper()
		if err := w.Use(t.Context(), id, "use", nothing); err != nil {
			t.Fatal(err)
		}
	}
	w.wantCalls(t, "a fresh fork", id, "p", 0)
	if err := w.LookAt(t.Context(), id, "look", nothing); err != nil {
		t.Fatal(err)
	}
	w.wantCalls(t, "looked at", id, "p", 0)
	use()
	w.wantCalls(t, "used", id, "p", 2) // Use counts each call twice, at its beginning and at its end
	w.branch(t, id, "b1", vm.BranchDiff)
	w.wantCalls(t, "branched", id, "b1", 0)
	use()
	if _, _, err := w.ForkSandbox(t.Context(), id, BranchRequest{Mode: vm.BranchDiff}, ForkRequest{N: 1}); err != nil {
		t.Fatal(err)
	}
	w.wantCalls(t, "forked from", id, "b1", 2)
	w.branch(t, id, "b2", vm.BranchDiff)
	b2, err := w.Snapshots().Detail("b2")
	if err != nil || b2.Branch.After == nil || b2.Branch.After.Tag != "b1" {
		t.Errorf("b2 comes after %+v, %v; want b1", b2.Branch.After, err)
	}
	use()
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantCalls(t, "suspended", id, "b2", 2)
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantCalls(t, "resumed", id, "b2", 2)
	if _, err := w.Rollback(t.Context(), id, "b1", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantCalls(t, "rolled back", id, "b1", 0)
	w.stop()
	w.start(t, 0)
	defer w.stop()
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	w.wantCalls(t, "after a restart of the daemon", id, "b1", -1)
	w.branch(t, id, "b3", vm.BranchDiff)
	w.wantCalls(t, "branched by the new daemon", id, "b3", 0)
	w.KillAll()
}

// After a rollback, the sandbox can still be rolled back to any of its branches, including later
// ones.
func TestRollbackForward(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	for _, tag := range []string{"b1", "b2", "b3"} {
		w.branch(t, id, tag, vm.BranchDiff)
	}
	for _, to := range []string{"b1", "b3", "p", "b2"} {
		if _, err := w.Rollback(t.Context(), id, to, unique.AsBefore); err != nil {
			t.Errorf("to %s: %v", to, err)
		}
	}
	w.branch(t, id, "b4", vm.BranchDiff)
	b4, err := w.Snapshots().Detail("b4")
	if err != nil || b4.Branch.After == nil || b4.Branch.After.Tag != "b2" || b4.Parent != "b2" {
		t.Errorf("b4 comes after %+v and has the parent %q, %v; want b2 twice", b4.Branch.After, b4.Parent, err)
	}
	w.KillAll()
	w.checkClean(t)
}
