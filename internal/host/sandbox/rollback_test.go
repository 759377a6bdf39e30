package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

func TestRollback(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.branch(t, id, "b1", vm.BranchDiff)
	w.branch(t, id, "b2", vm.BranchDiff)
	w.branch(t, w.fork(t, "b1"), "child", vm.BranchDiff)
	w.branch(t, w.fork(t, "p"), "sibling", vm.BranchDiff)
	another := w.bake
	another.Tag = "other"
	if _, err := w.Bake(t.Context(), another); err != nil {
		t.Fatal(err)
	}
	var family *failure.FamilyError
	if _, err := w.Rollback(t.Context(), id, "other", unique.AsBefore); !errors.As(err, &family) {
		t.Errorf("to a snapshot of another family: %v", err)
	}
	for _, to := range []string{"b1", "", "child", "sibling", "child", "p"} {
		r, err := w.Rollback(t.Context(), id, to, unique.AsBefore)
		if err != nil {
			t.Fatalf("to %q: %v", to, err)
		}
		if to != "" && r.Info.SnapshotTag != to || r.Info.State != Running {
			t.Errorf("to %q: %+v", to, r)
		}
	}
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(s.data); err != nil || len(files) != 1 {
		t.Errorf("tops left: %v, %v", files, err)
	}
	w.branch(t, id, "b3", vm.BranchDiff)
	if memory, disk := w.layers(t, "b3"); memory != 2 || disk != 2 {
		t.Errorf("branch after the rollback: %d memory and %d disk layers", memory, disk)
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "b1", N: 1}); err != nil {
		t.Errorf("a branch of before the rollback: %v", err)
	}
	w.vmms.ForkedErr = func(int) error { return errors.New("no answer") }
	var failed *failure.RollbackError
	if _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); !errors.As(err, &failed) ||
		!strings.Contains(err.Error(), "was killed") {
		t.Errorf("unconfirmed rollback: %v", err)
	}
	if _, err := w.Get(id); err == nil {
		t.Error("an unconfirmed sandbox is left")
	}
	w.KillAll()
	w.checkClean(t)
}

// After a failed rollback, a sandbox returns to its latest suspended state. The rollback may have
// failed because the agent did not confirm, or because the VM ended.
func TestFailedRollbackKeepsTheSuspendedState(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		fail func()
	}{
		{"no answer", func() {}},
		{"its VM dies", func() {
			for _, v := range w.vmms.All() {
				v.End(vm.Exit{Reason: vm.ExitInternal})
			}
		}},
	} {
		if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running {
			t.Fatalf("before %s: %+v, %v", c.name, i, err)
		}
		w.vmms.ForkedErr = func(int) error {
			c.fail()
			return errors.New("no answer")
		}
		var failed *failure.RollbackError
		if _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); !errors.As(err, &failed) || !failed.Kept ||
			!strings.Contains(err.Error(), "forkd resume "+id) {
			t.Errorf("%s: %v", c.name, err)
		}
		w.vmms.ForkedErr = nil
		w.awaitExit(t, id)
	}
	if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running {
		t.Errorf("%+v, %v", i, err)
	}
	w.KillAll()
	w.checkClean(t)
}

// If a daemon dies during a rollback, the guest may not have confirmed its identity. So the next
// daemon ends the VM, and the sandbox is suspended in the state of the snapshot.
func TestRestartDuringARollback(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "point"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Suspend(t.Context(), id); err != nil { // an earlier suspended state does not count
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.vmms.ForkedErr = func(int) error { // called when the agent is asked to confirm
		w.vmms.ForkedErr = nil
		w.stop()
		w.start(t, 0)
		if n, err := w.Recover(); n != 1 || err != nil {
			t.Errorf("recovered %d, %v", n, err)
		}
		return errors.New("no answer")
	}
	if _, err := w.Rollback(t.Context(), id, "point", unique.AsBefore); err == nil {
		t.Error("the rollback succeeded")
	}
	defer w.stop()
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	if i := s.Info(); i.State != Suspended || i.StateTag != "point" || i.SnapshotTag != "point" {
		t.Errorf("after a restart: %+v", i)
	}
	if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running {
		t.Errorf("%+v, %v", i, err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A record of an earlier version of forkd does not name the target of the rollback.
func TestRestartDuringARollbackToAnUnknownSnapshot(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.update(func(r *ledger.Record) { r.Restoring = true }); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 0 || err != nil {
		t.Errorf("recovered %d, %v", n, err)
	}
	w.checkClean(t)
}

// If a client disconnects while its rollback waits for a place, the sandbox is unchanged.
func TestRollbackWaitsBeforeItsPointOfNoReturn(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	_, total := w.restores.Count()
	var leave []func()
	for i := range total { // each owner may take all places but one
		done, err := owner.TakePlace(as(t, fmt.Sprint("token:", i)), w.restores, "")
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, done)
	}
	ctx, giveUp := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer giveUp()
	if _, err := w.Rollback(ctx, id, "", unique.AsBefore); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a place: %v", err)
	}
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	if i := s.Info(); i.State != Running || s.record.Restoring {
		t.Errorf("it is %v, restoring: %v", i.State, s.record.Restoring)
	}
	if err := w.Use(t.Context(), id, "use", nothing); err != nil {
		t.Errorf("its guest: %v", err)
	}
	for _, done := range leave {
		done()
	}
	if _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); err != nil {
		t.Errorf("when there are places: %v", err)
	}
	if n, _ := w.restores.Count(); n != 0 {
		t.Errorf("%d places are taken when it is done", n)
	}
	w.KillAll()
	w.checkClean(t)
}

// A parent that was baked from a disk-only branch begins a family of its own. All clients may use
// the parent, but this gives them no access to the earlier snapshots from which its disk comes.
func TestRollbackEndsAtABootedParent(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.boots(t)
	w.source(t)
	own := w.fork(t, "p")
	w.branch(t, own, "team-a.memory", vm.BranchDiff)
	above := w.fork(t, "team-a.memory")
	w.branch(t, above, "team-a.disk", vm.BranchDisk)
	if _, err := w.Bake(t.Context(), bake.Request{Tag: "pub", From: "team-a.disk"}); err != nil {
		t.Fatal(err)
	}
	b := owner.In(t.Context(), owner.Owner{Name: "token:b", Prefix: "team-b/"})
	made, err := w.Fork(b, ForkRequest{Tag: "pub", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := made.Sandboxes[0].ID
	for _, tag := range []string{"team-a.memory", "team-a.disk", "team-a.none"} {
		var none *store.NotFoundError
		r, err := w.Rollback(b, id, tag, unique.AsBefore)
		if !errors.As(err, &none) && !strings.Contains(err.Error(), "not found") {
			t.Errorf("to %s: %+v, %v", tag, r.Info, err)
		}
	}
	var family *failure.FamilyError
	_, err = w.Rollback(b, id, "p", unique.AsBefore)
	if !errors.As(err, &family) || strings.Contains(err.Error(), "team-a") {
		t.Errorf("to a parent of another family: %v", err)
	}
	if _, err := w.Rollback(t.Context(), id, "team-a.memory", unique.AsBefore); !errors.As(err, &family) {
		t.Errorf("by a client without a limit: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A rollback to a snapshot that the client may not see does not open the snapshot's files.
func TestRollbackOpensNoHiddenSnapshot(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	b := owner.In(t.Context(), owner.Owner{Name: "token:b", Prefix: "team-b/"})
	made, err := w.Fork(b, ForkRequest{Tag: "p", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.branch(t, w.fork(t, "p"), "hidden", vm.BranchDiff)
	for d, err := w.Snapshots().Detail("hidden"); !d.Sealed; d, err = w.Snapshots().Detail("hidden") {
		if err != nil { // the store reads the snapshot's files until it has computed their digests
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	w.Snapshots().Quiesce()
	opened := func() (names []string) {
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if name, _ := os.Readlink(fd); strings.Contains(name, "/hidden/") {
				names = append(names, name)
			}
		}
		return names
	}
	var none *store.NotFoundError
	if _, err := w.Rollback(b, made.Sandboxes[0].ID, "hidden", unique.AsBefore); !errors.As(err, &none) {
		t.Errorf("%v", err)
	}
	if names := opened(); len(names) > 0 {
		t.Errorf("open after a refused rollback: %v", names)
	}
	_, err = w.Rollback(t.Context(), made.Sandboxes[0].ID, "hidden", unique.AsBefore)
	if names := opened(); err != nil || len(names) == 0 {
		t.Errorf("a permitted rollback opens %v: %v", names, err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A client can roll back to a parent that another client has made, but not to a snapshot that it
// may not fork. It can always roll back to the snapshot that its sandbox was forked from, even if
// another client made that snapshot, and even after a suspension.
func TestRollbackToSnapshotsOfOthers(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	b := owner.In(t.Context(), owner.Owner{Name: "token:b", Prefix: "team-b/"})
	fork := func(ctx context.Context, tag string) string {
		t.Helper()
		made, err := w.Fork(ctx, ForkRequest{Tag: tag, N: 1, Labels: map[string]string{"team-b/x": ""}})
		if err != nil {
			t.Fatal(err)
		}
		return made.Sandboxes[0].ID
	}
	first := fork(b, "p")
	w.branch(t, first, "team-b.one", vm.BranchDiff)
	w.branch(t, first, "hidden", vm.BranchDiff) // made by the operator, from the client's sandbox
	between := fork(t.Context(), "hidden")
	w.branch(t, between, "team-b.two", vm.BranchDiff)
	handed, last := fork(t.Context(), "hidden"), fork(b, "team-b.two")
	var none *store.NotFoundError
	for _, c := range []struct {
		id, to string
		may    bool
	}{
		{first, "team-b.one", true}, {first, "hidden", false}, {first, "p", true},
		{last, "hidden", false}, {last, "p", true}, {handed, "hidden", true}, {handed, "", true},
	} {
		_, err := w.Rollback(b, c.id, c.to, unique.AsBefore)
		if (err == nil) != c.may || err != nil && !errors.As(err, &none) {
			t.Errorf("to %q: %v, want it allowed: %v", c.to, err, c.may)
		}
	}
	if _, err := w.Suspend(b, handed); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(b, handed); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Rollback(b, handed, "hidden", unique.AsBefore); err != nil {
		t.Errorf("to what it was forked from, after a suspension: %v", err)
	}
	if _, err := w.Suspend(b, handed); err != nil {
		t.Fatal(err)
	}
	if err := w.Kill(between); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Snapshots().Delete("hidden", store.DeleteForce); err != nil {
		t.Fatal(err)
	}
	w.branch(t, first, "hidden", vm.BranchDiff) // another snapshot of the family has the tag now
	if _, err := w.Resume(b, handed); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Rollback(b, handed, "hidden", unique.AsBefore); !errors.As(err, &none) {
		t.Errorf("to another snapshot with the tag of what it was forked from: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}
