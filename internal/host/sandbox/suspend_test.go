package sandbox

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

func TestPauseAndResume(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	if i, err := w.Pause(t.Context(), id); err != nil || i.State != Paused {
		t.Fatalf("%+v, %v", i, err)
	}
	var state *StateError
	if err := w.Use(t.Context(), id, "use", nothing); !errors.As(err, &state) || state.State != Paused {
		t.Errorf("ping of a paused sandbox: %v", err)
	}
	if _, err := w.Pause(t.Context(), id); !errors.As(err, &state) {
		t.Errorf("pause twice: %v", err)
	}
	w.branch(t, id, "b", vm.BranchLive)
	if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running {
		t.Fatalf("%+v, %v", i, err)
	}
	if err := w.Use(t.Context(), id, "use", nothing); err != nil {
		t.Error(err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A suspended sandbox has no VM, survives restarts of the daemon, and can be resumed under its id,
// again and again.
func TestSuspendAndResume(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	for round := range 3 {
		if i, err := w.Suspend(t.Context(), id); err != nil || i.State != Suspended || i.ID != id || i.PID != 0 {
			t.Fatalf("round %d: %+v, %v", round, i, err)
		}
		if n := w.vmms.Count(); n != 0 {
			t.Errorf("%d VMs run", n)
		}
		w.stop()
		w.start(t, 0)
		if n, err := w.Recover(); n != 1 || err != nil {
			t.Fatalf("recovered %d, %v", n, err)
		}
		if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running {
			t.Fatalf("round %d: %+v, %v", round, i, err)
		}
		if err := w.Use(t.Context(), id, "use", nothing); err != nil {
			t.Error(err)
		}
		w.Snapshots().Quiesce()
		if list := w.Snapshots().List(); len(list) != 2 {
			t.Errorf("round %d: %d snapshots, want the parent and the last suspended state", round, len(list))
		}
		w.branch(t, id, "b"+string(rune('0'+round)), vm.BranchDiff)
		if err := w.DeleteSnapshot("b"+string(rune('0'+round)), 0); err != nil {
			t.Error(err)
		}
	}
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	w.Snapshots().Quiesce()
	if list := w.Snapshots().List(); len(list) != 1 {
		t.Errorf("left: %+v", list)
	}
	w.checkClean(t)
	w.stop()
}

// A suspended state that cannot be read does not count as missing, and its files are kept.
func TestSuspendedStateThatCannotBeLookedAt(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{})
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.stop()
	path := filepath.Join(w.cfg.DataDir, id, ledger.SuspendedFile)
	hidden := filepath.Join(w.dir, "hidden")
	// a symbolic link to itself, which gives ELOOP
	if err := errors.Join(os.Rename(path, hidden), os.Symlink(ledger.SuspendedFile, path)); err != nil {
		t.Fatal(err)
	}
	w.start(t, 0)
	if n, err := w.Recover(); n != 0 || err != nil || len(w.LeftAlone()) != 1 {
		t.Errorf("recovered %d, %v; left alone: %+v", n, err, w.LeftAlone())
	}
	w.stop()
	if err := os.Rename(hidden, path); err != nil {
		t.Fatalf("its files: %v", err)
	}
	w.start(t, 0)
	defer w.stop()
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running {
		t.Errorf("%+v, %v", i, err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A suspension changes nothing before the new state is on disk.
func TestFailedSuspension(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.vmms.BranchErr = errors.New("no space left on device")
	if _, err := w.Suspend(t.Context(), id); err == nil {
		t.Fatal("suspended without a branch")
	}
	w.vmms.BranchErr = nil
	obstacle := filepath.Join(w.dir, "state", "snapshots", "suspended-"+id+"-2", "x")
	if err := os.MkdirAll(obstacle, 0o700); err != nil { // prevents the flush from moving the snapshot there
		t.Fatal(err)
	}
	if _, err := w.Suspend(t.Context(), id); err == nil {
		t.Fatal("suspended without a state on disk")
	}
	if err := w.Use(t.Context(), id, "use", nothing); err != nil {
		t.Errorf("the sandbox: %v", err)
	}
	if err := os.RemoveAll(filepath.Dir(obstacle)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	w.vmms.ForkedErr = func(int) error { return errors.New("no answer") }
	if _, err := w.Resume(t.Context(), id); err == nil {
		t.Error("brought back unconfirmed")
	}
	w.vmms.ForkedErr = func(int) error {
		w.vmms.All()[0].End(vm.Exit{Reason: vm.ExitInternal, Detail: "killed"})
		return io.EOF
	}
	if _, err := w.Resume(t.Context(), id); !vmpool.IsEnd(err) || !strings.Contains(err.Error(), "stays suspended") {
		t.Errorf("a VM that ends as it is brought back: %v", err)
	}
	w.vmms.ForkedErr = nil
	if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running {
		t.Errorf("after failed attempts: %+v, %v", i, err)
	}
	w.KillAll()
	w.checkClean(t)
}

// An idle sandbox is suspended, and the next request resumes it.
func TestIdleSandboxIsSuspended(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	if _, err := w.Bake(t.Context(), w.bake); err != nil {
		t.Fatal(err)
	}
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, IdleTimeout: ledger.MinIdle})
	if err != nil {
		t.Fatal(err)
	}
	id := r.Sandboxes[0].ID
	for range 2 {
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if s, err := w.Get(id); err != nil || s.Info().State == Suspended {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("it was not suspended")
			}
		}
		if err := w.Use(t.Context(), id, "use", nothing); err != nil {
			t.Fatalf("the request that brings it back: %v", err)
		}
	}
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var state *StateError
	if err := w.Use(t.Context(), id, "use", nothing); !errors.As(err, &state) {
		t.Errorf("a request to a sandbox that was suspended on purpose: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A snapshot of a suspended sandbox can be made without a VM. It remains when the sandbox is
// deleted.
func TestSnapshotOfASuspendedSandbox(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	var state *StateError
	if _, err := w.copyOf(t, id, "early"); !errors.As(err, &state) {
		t.Errorf("of one that runs: %v", err)
	}
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	info, err := w.copyOf(t, id, "asleep")
	if err != nil || info.Tag != "asleep" || info.Transient || info.Branch == nil || info.Branch.SandboxID != id {
		t.Fatalf("%+v, %v", info, err)
	}
	if s, err := w.Get(id); err != nil || s.Info().State != Suspended {
		t.Errorf("the sandbox was brought back: %v, %v", s.Info().State, err)
	}
	if info, err := w.copyOf(t, id, ""); err != nil || !strings.Contains(info.Tag, id) {
		t.Errorf("without a tag: %+v, %v", info, err)
	}
	if _, err := w.copyOf(t, id, "asleep"); err == nil {
		t.Error("a tag was taken twice")
	}
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	w.fork(t, "asleep")
	w.KillAll()
	w.checkClean(t)
}

// A snapshot of a suspended sandbox copies its whole state. So the number of such snapshots that
// are made at a time is limited, like the number of branches.
func TestSnapshotsOfSuspendedSandboxesAreLimited(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.branches = gate.New(1)
	id := w.source(t)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	leave, err := w.branches.Enter() // takes a place as a branch does
	if err != nil {
		t.Fatal(err)
	}
	var busy *admit.BusyError
	if _, err := w.copyOf(t, id, "s"); !errors.As(err, &busy) {
		t.Errorf("beyond the limit: %v", err)
	}
	leave()
	for range 2 {
		if _, err := w.copyOf(t, id, ""); err != nil {
			t.Errorf("within the limit: %v", err)
		}
	}
	w.KillAll()
	w.checkClean(t)
}

func TestCompact(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.branch(t, id, "b", vm.BranchDiff)
	if _, err := chain.Compact(t.Context(), w.Snapshots(), "b", "b", nil); err == nil {
		t.Error("compacted onto itself")
	}
	if _, err := chain.Compact(t.Context(), w.Snapshots(), "b", "flat", nil); err != nil {
		t.Fatal(err)
	}
	if memory, disk := w.layers(t, "flat"); memory != 1 || disk != 1 {
		t.Errorf("%d memory and %d disk layers", memory, disk)
	}
	w.fork(t, "flat")
	w.KillAll()
	w.checkClean(t)
}

// After a suspension has failed, disk-only branches are possible again.
func TestBranchOfTheDiskAfterAFailedSuspension(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.boots(t)
	id := w.source(t)
	w.vmms.BranchErr = errors.New("no space left on device")
	if _, err := w.Suspend(t.Context(), id); err == nil {
		t.Fatal("suspended without a branch")
	}
	w.vmms.BranchErr = nil
	w.branch(t, id, "d", vm.BranchDisk)
	w.KillAll()
	w.checkClean(t)
}

// The memory of a sandbox with a build's secret is never saved: not on request, not when the
// sandbox is idle, and not when it expires. Its disk can be saved. The sandbox continues to run.
func TestMemoryWithASecretIsNotSaved(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.boots(t)
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{IdleTimeout: ledger.MinIdle})
	if err := w.KeepSecret(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		var state *StateError
		if !errors.As(err, &state) || !state.Secret || !strings.Contains(err.Error(), "has given it a secret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = w.Suspend(t.Context(), id)
	refused("a suspension", err)
	for _, mode := range []vm.BranchMode{vm.BranchLive, vm.BranchDiff, vm.BranchFull} {
		_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: mode})
		refused(mode.String(), err)
	}
	_, _, err = w.ForkSandbox(t.Context(), id, BranchRequest{Mode: vm.BranchLive}, ForkRequest{N: 1})
	refused("a fork", err)
	// updateAll only writes the new time into the record: it starts no timer.
	if err := s.updateAll(Expiry{At: time.Now(), Suspends: true}.Write); err != nil {
		t.Fatal(err)
	}
	w.suspendExpired(s)
	w.suspendIdle(s)
	if i := s.Info(); i.State != Running {
		t.Errorf("it is %v", i.State)
	}
	if err := w.Use(t.Context(), id, "use", nothing); err != nil {
		t.Errorf("its guest: %v", err)
	}
	w.branch(t, id, "d", vm.BranchDisk)
	if list := w.Snapshots().List(); len(list) != 2 {
		t.Errorf("saved: %+v", list)
	}
	w.KillAll()
	w.checkClean(t)
}
