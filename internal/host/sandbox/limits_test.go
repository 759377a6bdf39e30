package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

func TestLimitsStayWithASandbox(t *testing.T) {
	w := newWorld(t, 0)
	req := w.bake
	req.Limits = vm.Limits{CPUs: 2}
	if _, err := w.Bake(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	limits := func(id string) vm.Limits {
		t.Helper()
		s, err := w.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		info := s.Info()
		if got := w.vm(id).Limits(); got != info.Limits {
			t.Errorf("the VM has %+v, the sandbox says %+v", got, info.Limits)
		}
		return info.Limits
	}
	forked := func(r ForkRequest) string {
		t.Helper()
		r.N = 1
		f, err := w.Fork(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return f.Sandboxes[0].ID
	}
	want := func(what string, got, want vm.Limits) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	want("of the snapshot", limits(forked(ForkRequest{Tag: "p"})), vm.Limits{CPUs: 2})
	want("none, as asked", limits(forked(ForkRequest{Tag: "p", Limits: &vm.Limits{}})), vm.Limits{})
	id := forked(ForkRequest{Tag: "p", Limits: &vm.Limits{MemoryMiB: 128}})
	set := vm.Limits{MemoryMiB: 256, SwapMiB: 5, IOOpsPerSecond: 70}
	if _, err := w.SetLimits(t.Context(), id, set); err != nil {
		t.Fatal(err)
	}
	want("changed", limits(id), set)
	b, err := w.Branch(t.Context(), id, BranchRequest{Mode: vm.BranchDiff})
	if err != nil {
		t.Fatal(err)
	}
	want("of a branch", limits(forked(ForkRequest{Tag: b.Info.Tag})), set)
	var wrong *invalid.Error
	if _, err := w.SetLimits(t.Context(), id, vm.Limits{MemoryMiB: 40}); !errors.As(err, &wrong) ||
		wrong.Field != "memory_mib" {
		t.Errorf("less than it uses: %v", err)
	}
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	set.CPUs = 1.5
	if _, err := w.SetLimits(t.Context(), id, set); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	want("suspended, changed and resumed", limits(id), set)
	w.vmms.LimitErr = &invalid.Error{Field: "limits.cpus", Reason: "no cgroups"}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1}); !errors.As(err, &wrong) ||
		wrong.Field != "limits.cpus" {
		t.Errorf("limits of the snapshot that cannot be enforced: %v", err)
	}
	w.KillAll()
	w.stop()
}

// While a branch of a VM is flushed, the limits of the VM's disk are lifted. The flusher writes one
// snapshot at a time, so a slow flush would make other flushes wait. The daemon treats a VM without
// limits in the same way, because limits may be set before the flush ends. The test checks branches
// of every mode, and a daemon that takes the VM over.
func TestFlushIsNotHeldBack(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	lifted := w.fake(t, id).Hurried.Load
	for _, req := range []BranchRequest{
		{Tag: "diff", Mode: vm.BranchDiff}, {Tag: "live", Mode: vm.BranchLive}, {Tag: "disk", Mode: vm.BranchDisk},
		{Tag: "diff", Mode: vm.BranchDiff, Replace: true},
	} {
		before := lifted()
		if _, err := w.Branch(t.Context(), id, req); err != nil {
			t.Fatal(err)
		}
		if lifted() == before {
			t.Errorf("%+v: the limits are not lifted", req)
		}
		if _, err := w.SetLimits(t.Context(), id, vm.Limits{IOBytesPerSecond: 1 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	w.Snapshots().Quiesce()
	if n := w.fake(t, id).Calmed.Load(); n != lifted() {
		t.Errorf("the limits were lifted %d times, and restored %d times", lifted(), n)
	}
	obstacle := filepath.Join(w.dir, "state", "snapshots", "late") // prevents the flush
	if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.branch(t, id, "late", vm.BranchDiff)
	checkLiftedAfterRestart(t, w, lifted, obstacle)
}

// checkLiftedAfterRestart starts a new daemon, which must lift the limits of the only sandbox when
// it takes the sandbox over. The parameter obstacle is the path of a file that prevents the flush
// of a branch.
func checkLiftedAfterRestart(t *testing.T, w *world, lifted func() int64, obstacle string) {
	t.Helper()
	w.stop()
	w.start(t, 0)
	defer w.stop()
	before := lifted()
	if n, err := w.Recover(); n != 1 || err != nil {
		t.Fatalf("recovered %d, %v", n, err)
	}
	if lifted() == before {
		t.Error("a daemon that takes over an unflushed snapshot does not lift the limits")
	}
	w.KillAll()
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
}

// A daemon takes over a VM while a branch of another sandbox is flushed. The branch contains the
// VM's disk layer, so the daemon lifts the VM's limits, even if the snapshot for which the layer
// was made is deleted.
func TestFlushOfADescendantIsNotHeldBack(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	lifted := w.fake(t, id).Hurried.Load
	w.branch(t, id, "first", vm.BranchDiff)
	child := w.fork(t, "first")
	obstacle := filepath.Join(w.dir, "state", "snapshots", "late") // prevents the flush
	if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.branch(t, child, "late", vm.BranchDiff)
	w.branch(t, id, "second", vm.BranchDiff) // from here on, the sandbox's memory is not based on "first" any more
	if err := w.Kill(child); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Snapshots().Delete("first", store.DeleteForce); err != nil {
		t.Fatal(err)
	}
	if n := w.unnamed(t); n != 0 {
		t.Errorf("%d deleted snapshots are kept", n)
	}
	checkLiftedAfterRestart(t, w, lifted, obstacle)
}
