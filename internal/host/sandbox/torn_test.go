package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// tornVMM is a VM that calls a function of the test during a branch.
type tornVMM struct {
	*vmfake.VMM
	branch func() error // called before the VM executes the branch; may be nil
}

func (v *tornVMM) Branch(ctx context.Context, req vmmproto.Branch, f vmmclient.BranchFiles) (vmmproto.BranchResult,
	error) {
	if v.branch != nil {
		if err := v.branch(); err != nil {
			return vmmproto.BranchResult{}, err
		}
	}
	return v.VMM.Branch(ctx, req, f)
}

// whileCopying begins a live branch and runs f while its pages are being copied. It returns the
// error of the branch.
func (w *world) whileCopying(t *testing.T, s *Sandbox, tag string, f func()) error {
	t.Helper()
	w.vmms.Copying = make(chan struct{})
	answered := make(chan error, 1)
	before := s.top()
	go func() {
		_, err := w.Branch(context.Background(), s.id, BranchRequest{Tag: tag, Mode: vm.BranchLive})
		answered <- err
	}()
	for s.top() == before {
		time.Sleep(time.Millisecond)
	}
	f()
	close(w.vmms.Copying)
	return <-answered
}

// top returns the disk top that the sandbox's record names.
func (s *Sandbox) top() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Top
}

// torn returns a sandbox whose VM is a tornVMM.
func (w *world) torn(t *testing.T) (s *Sandbox, v *tornVMM) {
	t.Helper()
	w.vmms.Wrap = func(f *vmfake.VMM) vmpool.VMM { v = &tornVMM{VMM: f}; return v }
	s, err := w.Get(w.source(t))
	if err != nil {
		t.Fatal(err)
	}
	w.vmms.Wrap = nil
	return s, v
}

// obstruct makes it impossible to write the record of s until clear is called.
func obstruct(t *testing.T, s *Sandbox) (clear func()) {
	t.Helper()
	path := filepath.Join(s.live.dir, ledger.File)
	if err := errors.Join(os.Rename(path, path+".aside"), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.Remove(path), os.Rename(path+".aside", path)); err != nil {
			t.Fatal(err)
		}
	}
}

// If the daemon cannot record which top is in use, later branches do not lose that top.
func TestBranchThatCannotBeSettled(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	s, v := w.torn(t)
	var clear func()
	v.branch = func() error { clear = obstruct(t, s); return nil }
	if _, err := w.Branch(t.Context(), s.id, BranchRequest{Tag: "a", Mode: vm.BranchDiff}); err == nil {
		t.Fatal("a branch whose record cannot be written succeeded")
	}
	v.branch = nil
	if _, err := w.Branch(t.Context(), s.id, BranchRequest{Tag: "a", Mode: vm.BranchDiff}); err == nil {
		t.Fatal("and the next one")
	}
	clear()
	w.branch(t, s.id, "b", vm.BranchDiff)
	if _, disk := w.layers(t, "b"); disk != 3 {
		t.Errorf("%d disk layers, want those of the parent, of the branch that failed, and of this one", disk)
	}
	w.KillAll()
	w.checkClean(t)
}

// If a branch returns an error, there is no snapshot.
func TestBranchThatCannotBeNoted(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	s, _ := w.torn(t)
	var clear func()
	if err := w.whileCopying(t, s, "a", func() { clear = obstruct(t, s) }); err == nil {
		t.Fatal("a branch whose record cannot be written succeeded")
	}
	if list := w.Snapshots().List(); len(list) != 1 {
		t.Errorf("published: %+v", list)
	}
	clear()
	w.branch(t, s.id, "a", vm.BranchLive)
	if n := s.Info().BranchCount; n != 1 {
		t.Errorf("branch count %d", n)
	}
	w.KillAll()
	w.checkClean(t)
}

// If this daemon or an earlier one has left an unused top behind, the next branch is still
// possible.
func TestTopsWithoutUse(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	newTop := w.cfg.NewTop
	w.cfg.NewTop = func(f *os.File, _ uint64) error {
		f.WriteString("half")
		return &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	if _, err := w.Branch(t.Context(), id, BranchRequest{Mode: vm.BranchLive}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("branch without room for a top: %v", err)
	}
	if _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("rollback without room for a top: %v", err)
	}
	w.cfg.NewTop = newTop
	if _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); err != nil {
		t.Errorf("rollback after one that found no room: %v", err)
	}
	w.branch(t, id, "a", vm.BranchLive)
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	orphan := filepath.Join(s.data, fmt.Sprintf("%s.%d", ledger.FirstTop, s.record.Tops+1))
	if err := os.WriteFile(orphan, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 1 || err != nil {
		t.Fatalf("recovered %d, %v", n, err)
	}
	w.branch(t, id, "b", vm.BranchLive)
	if _, disk := w.layers(t, "b"); disk != 3 {
		t.Errorf("%d disk layers", disk)
	}
	w.KillAll()
	w.checkClean(t)
}

// If a VMM is still copying a branch for an earlier daemon, it refuses another branch. The daemon
// then repeats its request.
func TestBranchAfterACopyOfAnotherDaemon(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	s, v := w.torn(t)
	asked := 0
	v.branch = func() error {
		if asked++; asked < 3 {
			return &vm.Error{Code: vm.ErrCopying, Err: errors.New("busy")}
		}
		return nil
	}
	w.branch(t, s.id, "a", vm.BranchLive)
	if asked != 3 {
		t.Errorf("asked %d times", asked)
	}
	w.KillAll()
	w.checkClean(t)
}

// If a VM ends during a branch, the error says how it ended.
func TestBranchOfAVMThatEnds(t *testing.T) {
	for _, late := range []bool{false, true} {
		w := newWorld(t, 0)
		s, v := w.torn(t)
		end := func() { v.End(vm.Exit{Reason: vm.ExitInternal, Detail: "killed"}) }
		var err error
		if late {
			w.vmms.CopyErr = vmmclient.ErrGone
			err = w.whileCopying(t, s, "a", end)
		} else {
			v.branch = func() error { // the VM's process exits a little after its connection has ended
				time.AfterFunc(20*time.Millisecond, end)
				return vmmclient.ErrGone
			}
			_, err = w.Branch(t.Context(), s.id, BranchRequest{Tag: "a", Mode: vm.BranchLive})
		}
		var state *StateError
		if !errors.As(err, &state) || state.State != Exited || state.Exit.Detail != "killed" {
			t.Errorf("late %v: %v", late, err)
		}
		w.KillAll()
		w.checkClean(t)
		w.stop()
	}
}

// After a suspension, users see the same description of the sandbox as before, and it can be rolled
// back to the same snapshots.
func TestSuspendedSnapshotIsNobodysBusiness(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.branch(t, id, "point", vm.BranchLive)
	for range 2 {
		if i, err := w.Suspend(t.Context(), id); err != nil || i.SnapshotTag != "p" {
			t.Fatalf("suspend: %+v, %v", i, err)
		}
		if i, err := w.Resume(t.Context(), id); err != nil || i.SnapshotTag != "p" {
			t.Fatalf("resume: %+v, %v", i, err)
		}
	}
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: vm.BranchLive, ParentTag: "p"}); err != nil {
		t.Errorf("branch that names the parent: %v", err)
	}
	if r, err := w.Rollback(t.Context(), id, "point", unique.AsBefore); err != nil || r.Info.SnapshotTag != "point" {
		t.Errorf("rollback to a branch from before: %+v, %v", r, err)
	}
	w.KillAll()
	w.checkClean(t)
}
