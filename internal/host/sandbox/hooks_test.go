package sandbox

import (
	"errors"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/hook"
	"github.com/forkd/forkd/internal/host/idle"
	"github.com/forkd/forkd/internal/proto/vm"
)

// The fake guests of this test run no commands, so every hook fails. A failed hook keeps an idle
// sandbox awake, but not a sandbox whose expiry has passed. Hooks survive a restart of the daemon.
func TestFailedHooks(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	fails := &snapshot.Hook{Args: []string{"true"}, TimeoutSecs: 300, OnFailure: snapshot.HookAborts}
	id := forkOne(t, w, ForkRequest{IdleTimeout: time.Hour,
		Hooks: &snapshot.Hooks{BeforeBranch: fails, BeforeSuspend: fails}})
	w.stop()
	w.start(t, 0)
	defer w.stop()
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	var failed *hook.Error
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b"}); !errors.As(err, &failed) ||
		failed.Point != hook.BeforeBranch {
		t.Errorf("branch: %v", err)
	}
	if _, err := w.Suspend(t.Context(), id); !errors.As(err, &failed) || failed.Point != hook.BeforeSuspend {
		t.Errorf("suspend: %v", err)
	}
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "own", Mode: vm.BranchDiff, NoHooks: true}); err != nil {
		t.Errorf("a branch of the daemon: %v", err)
	}
	if m, err := w.Snapshots().Acquire("own"); err != nil || m.Manifest().Guest.Hooks.BeforeSuspend == nil {
		t.Errorf("the branch has no hooks: %v", err)
	} else {
		m.Release()
	}
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	s.usage = idle.New(time.Nanosecond, func() {}) // the sandbox has been idle for longer than its timeout
	w.suspendIdle(s)
	if i := s.Info(); i.State != Running {
		t.Errorf("the idle sandbox is %v", i.State)
	}
	// updateAll only writes the new time into the record: it starts no timer.
	if err := s.updateAll(Expiry{At: time.Now(), Suspends: true}.Write); err != nil {
		t.Fatal(err)
	}
	w.suspendExpired(s)
	if i := s.Info(); i.State != Suspended {
		t.Errorf("the expired sandbox is %v", i.State)
	}
	after := snapshot.Hooks{AfterResume: fails}
	if i, err := w.SetHooks(t.Context(), id, after); err != nil || i.Hooks != after {
		t.Errorf("set while suspended: %+v, %v", i.Hooks, err)
	}
	if _, err := w.Resume(t.Context(), id); !errors.As(err, &failed) || failed.Point != hook.AfterResume ||
		s.Info().State != Suspended {
		t.Errorf("resume: %v, and it is %v", err, s.Info().State)
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "own", N: 2, Hooks: &snapshot.Hooks{AfterFork: fails}}); !errors.As(
		err, &failed) || failed.Point != hook.AfterFork {
		t.Errorf("fork: %v", err)
	}
	if n := w.vmms.Count(); n != 0 {
		t.Errorf("%d VMs are left", n)
	}
	if _, err := w.SetHooks(t.Context(), id, snapshot.Hooks{}); err != nil {
		t.Error(err)
	}
	if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running {
		t.Errorf("resume without hooks: %+v, %v", i, err)
	}
	w.KillAll()
}

// An idle sandbox is not suspended while its guest works. It is suspended when the guest has
// stopped working.
func TestAGuestThatWorksIsNotIdle(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	busy, cpu := true, time.Duration(0)
	w.vmms.Busy = func() bool { return busy }
	w.vmms.CPU = func() time.Duration {
		cpu += time.Hour
		return cpu
	}
	s, err := w.Get(forkOne(t, w, ForkRequest{IdleTimeout: time.Hour}))
	if err != nil {
		t.Fatal(err)
	}
	s.usage = idle.New(time.Nanosecond, func() {}) // the sandbox has been idle for longer than its timeout
	wants := func(what string, want bool) {
		t.Helper()
		if got := w.works(s); got != want {
			t.Errorf("%s: %v", what, got)
		}
		w.suspendIdle(s)
		if i := s.Info(); (i.State == Running) != want {
			t.Errorf("%s: it is %v", what, i.State)
		}
	}
	wants("a lock", true)
	busy = false
	wants("processor time", true)
	w.vmms.CPU = nil
	wants("nothing", false)
	w.KillAll()
}
