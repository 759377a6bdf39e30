package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/proto/vm"
)

func TestRollback(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.branch(t, id, "b1", vm.BranchDiff)
	w.branch(t, id, "b2", vm.BranchDiff)
	other := w.fork(t, "p")
	w.branch(t, other, "else", vm.BranchDiff)
	var line *LineError
	if _, err := w.Rollback(t.Context(), id, "else"); !errors.As(err, &line) {
		t.Errorf("to a snapshot of another line: %v", err)
	}
	for _, to := range []string{"b1", "", "p"} {
		r, err := w.Rollback(t.Context(), id, to)
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
	var failed *RollbackError
	if _, err := w.Rollback(t.Context(), id, ""); !errors.As(err, &failed) ||
		!strings.Contains(err.Error(), "was killed") {
		t.Errorf("unconfirmed rollback: %v", err)
	}
	if _, err := w.Get(id); err == nil {
		t.Error("an unconfirmed sandbox is left")
	}
	w.KillAll()
	w.checkClean(t)
}

// A rollback that fails takes a sandbox back to its latest suspended state, whether it is not
// confirmed or its VM dies.
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
		var failed *RollbackError
		if _, err := w.Rollback(t.Context(), id, ""); !errors.As(err, &failed) || !failed.Kept ||
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

// A sandbox that a daemon was rolling back when it died may not have confirmed: it is not handed
// out.
func TestRestartDuringARollback(t *testing.T) {
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

// A client that gives up while its rollback waits for a place has its sandbox as it was.
func TestRollbackWaitsBeforeItsPointOfNoReturn(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	_, total := w.restores.Count()
	var leave []func()
	for i := range total { // each owner may have all places but one
		done, err := takePlace(as(t, fmt.Sprint("token:", i)), w.restores, "")
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, done)
	}
	ctx, giveUp := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer giveUp()
	if _, err := w.Rollback(ctx, id, ""); !errors.Is(err, context.DeadlineExceeded) {
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
	if _, err := w.Rollback(t.Context(), id, ""); err != nil {
		t.Errorf("when there are places: %v", err)
	}
	if n, _ := w.restores.Count(); n != 0 {
		t.Errorf("%d places are taken when it is done", n)
	}
	w.KillAll()
	w.checkClean(t)
}
