package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/proto/vm"
)

// If Keep has not been called, the next daemon kills the children of a provisional fork, even
// suspended ones, and deletes the snapshot that they were forked from. If Keep has been called, the
// next daemon takes the children over.
func TestProvisionalFork(t *testing.T) {
	for name, n := range map[string]int{"one child": 1, "three children": 3} {
		for _, kept := range []bool{false, true} {
			t.Run(name, func(t *testing.T) { testProvisional(t, n, kept) })
		}
	}
}

func testProvisional(t *testing.T, n int, kept bool) {
	w := newWorld(t, 0)
	id := w.source(t)
	forked, _, err := w.ForkSandbox(t.Context(), id, BranchRequest{Mode: vm.BranchLive},
		ForkRequest{N: n, Provisional: true})
	if err != nil || len(forked.Sandboxes) != n {
		t.Fatalf("%+v, %v", forked, err)
	}
	if _, err := w.Suspend(t.Context(), forked.Sandboxes[n-1].ID); err != nil {
		t.Fatal(err)
	}
	if kept {
		if err := forked.Keep(); err != nil {
			t.Fatal(err)
		}
	}
	w.stop()
	w.start(t, 0)
	defer w.stop()
	want := 1
	if kept {
		want += n
	}
	if found, err := w.Recover(); found != want || err != nil || len(w.LeftAlone()) != 0 {
		t.Errorf("recovered %d, %v, want %d; left alone %v", found, err, want, w.LeftAlone())
	}
	if !w.has(id) {
		t.Error("the source is lost")
	}
	w.wantNoForks(t)
	if !kept {
		w.KillAll()
		w.checkClean(t)
		for _, s := range w.Snapshots().List() {
			if s.Tag != "p" {
				t.Errorf("the snapshot %s is left", s.Tag)
			}
		}
	}
}

// wantNoForks checks that no file of a fork is left.
func (w *world) wantNoForks(t *testing.T) {
	t.Helper()
	for _, dir := range []string{w.cfg.RunDir, w.cfg.DataDir} {
		if notes, _ := filepath.Glob(filepath.Join(dir, ledger.ForkPrefix+"*")); len(notes) != 0 {
			t.Errorf("left: %v", notes)
		}
	}
}

// If a child is suspended before Keep is called, it survives a reboot only if Keep is called later.
// This is true even though the reboot deletes the run directory.
func TestProvisionalForkBeforeAReboot(t *testing.T) {
	for _, kept := range []bool{false, true} {
		w := newWorld(t, 0)
		forked, _, err := w.ForkSandbox(t.Context(), w.source(t), BranchRequest{Mode: vm.BranchLive},
			ForkRequest{N: 2, Provisional: true})
		if err != nil {
			t.Fatal(err)
		}
		id := forked.Sandboxes[0].ID
		if _, err := w.Suspend(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if kept {
			if err := forked.Keep(); err != nil {
				t.Fatal(err)
			}
		}
		w.stop()
		if err := os.RemoveAll(w.cfg.RunDir); err != nil {
			t.Fatal(err)
		}
		w.start(t, 0)
		if _, err := w.Recover(); err != nil || len(w.LeftAlone()) != 0 {
			t.Errorf("%v; left alone %v", err, w.LeftAlone())
		}
		if w.has(id) != kept {
			t.Errorf("kept %v, has %v", kept, w.has(id))
		}
		w.wantNoForks(t)
		w.stop()
	}
}
