package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// fake returns the VM of a sandbox.
func (w *world) fake(t *testing.T, id string) *vmfake.VMM {
	t.Helper()
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	return s.live.vmm.(*vmfake.VMM)
}

// asked returns the latest branch request that a VM has received.
func (w *world) asked(t *testing.T, id string) vmmproto.Branch {
	t.Helper()
	v := w.fake(t, id)
	w.vmms.Mu.Lock()
	defer w.vmms.Mu.Unlock()
	return v.Asked[len(v.Asked)-1]
}

// If a sandbox is branched repeatedly, its memory is based on its latest branch, and each branch
// can be deleted immediately. After a certain number of branches, the next branch is based on the
// snapshot from which the sandbox runs, and holds all pages that were written since the fork. All
// remaining snapshots are complete.
func TestLineOfBranches(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	for i := range 3*chain.MaxLine + 2 {
		tag := fmt.Sprintf("b%d", i)
		r := w.branch(t, id, tag, []vm.BranchMode{vm.BranchLive, vm.BranchDiff}[i%2])
		if r.Shared == 0 || r.Info.Parent != "p" {
			t.Errorf("%s: %+v", tag, r)
		}
		if req := w.asked(t, id); !req.Keep || req.SinceRestore != (i > 0 && i%chain.MaxLine == 0) {
			t.Errorf("%s: the VMM was asked %+v", tag, req)
		}
		if memory, _ := w.layers(t, tag); memory != 2+i%chain.MaxLine {
			t.Errorf("%s has %d memory layers", tag, memory)
		}
		if i%2 == 1 {
			if _, err := w.Snapshots().Delete(tag, store.DeleteSingle); err != nil {
				t.Errorf("delete the branch that its source lies on: %v", err)
			}
			if n := w.unnamed(t); n != 1 {
				t.Errorf("%d snapshots without a name, want that one", n)
			}
		} else if n := w.unnamed(t); n != 0 {
			t.Errorf("%d snapshots without a name that nobody needs", n)
		}
	}
	if _, err := w.Snapshots().Delete("p", store.DeleteForce); err == nil {
		t.Error("the snapshot that it runs from was deleted")
	}
	w.fork(t, "b20")
	for _, info := range w.Snapshots().List() {
		if err := w.Snapshots().Verify(t.Context(), info.Tag); err != nil {
			t.Error(err)
		}
	}
	w.KillAll()
	w.checkClean(t)
}

// A line also ends when its layers have more than twice as many bytes as the guest's memory. This
// limit is necessary because the layers stay in RAM even after the branches are deleted.
func TestLineEndsWithItsBytes(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.bake.MemoryMiB = 64
	id := w.source(t)
	for i := range 4 {
		tag := fmt.Sprintf("b%d", i)
		w.branch(t, id, tag, vm.BranchLive)
		if whole := w.asked(t, id).SinceRestore; whole != (i == 3) {
			t.Errorf("%s: all memory since the fork: %v", tag, whole)
		}
		w.Snapshots().Quiesce()
		if _, err := w.Snapshots().Delete(tag, store.DeleteSingle); err != nil {
			t.Fatal(err)
		}
		w.fillLayers(t, 64<<20) // simulates a guest that has written all of its memory
	}
	if entries, err := os.ReadDir(filepath.Join(w.dir, "ram")); err != nil || len(entries) != 2 {
		t.Errorf("%d layers are in RAM (%v), want that of p and one of the new line", len(entries), err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A branch that ends a line, or is encrypted, also needs room in RAM for the pages of the line.
func TestRoomForTheEndOfALine(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.vmms.GuestDirty = vm.PageSize
	id := w.source(t)
	w.branch(t, id, "b", vm.BranchLive)
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line   int
		secret bool
		want   uint64
	}{{1, false, vm.PageSize}, {1, true, 2 * vm.PageSize}, {chain.MaxLine, false, 2 * vm.PageSize}} {
		rec := s.record
		rebased := *rec.Rebased
		rebased.Line = c.line
		rec.Rebased = &rebased
		if got, err := w.nextBranchBytes(t.Context(), s, &rec, s.live, c.secret); got != c.want || err != nil {
			t.Errorf("%+v: %d bytes, %v", c, got, err)
		}
	}
	w.KillAll()
	w.checkClean(t)
}

// If the end of a line would exceed the sandbox's memory limit, the line continues beyond its usual
// length. When it can no longer continue, branches are refused, but the sandbox can be suspended.
func TestLineEndsWithinTheMemoryLimit(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.bake.MemoryMiB = 64
	id := w.source(t)
	w.branch(t, id, "a", vm.BranchLive)
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	set := func(limit uint64) {
		t.Helper()
		err := s.update(func(r *ledger.Record) {
			r.Rebased.Line, r.Limits.MemoryMiB = chain.MaxLine, limit // the fake VM has 48 MiB of its own
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	set(48)
	w.branch(t, id, "b", vm.BranchLive)
	if memory, _ := w.layers(t, "b"); memory != 3 || w.asked(t, id).SinceRestore {
		t.Errorf("%d memory layers, since the fork: %v", memory, w.asked(t, id).SinceRestore)
	}
	set(49)
	w.branch(t, id, "c", vm.BranchLive)
	if memory, _ := w.layers(t, "c"); memory != 2 || !w.asked(t, id).SinceRestore {
		t.Errorf("%d memory layers, since the fork: %v", memory, w.asked(t, id).SinceRestore)
	}
	set(48)
	w.Snapshots().Quiesce()
	w.fillLayers(t, 3*64<<20)
	var tooSmall *invalid.Error
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "d", Mode: vm.BranchLive}); !errors.As(err, &tooSmall) ||
		tooSmall.Field != "limits.memory_mib" {
		t.Errorf("a line that is too large to go on, and to end: %v", err)
	}
	w.branch(t, id, "disk", vm.BranchDisk)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Error(err)
	}
	w.KillAll()
	w.checkClean(t)
}

// fillLayers makes each layer in RAM take at least the given number of bytes.
func (w *world) fillLayers(t *testing.T, bytes int64) {
	t.Helper()
	layers, err := filepath.Glob(filepath.Join(w.dir, "ram", "*", "memory.layer"))
	if err != nil {
		t.Fatal(err)
	}
	const keepSize = unix.FALLOC_FL_KEEP_SIZE
	for _, name := range layers {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a layer that no sandbox uses any more was deleted in the meantime
		}
		if err == nil {
			err = errors.Join(unix.Fallocate(int(f.Fd()), keepSize, 0, bytes), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// After a failed rebase the next branch lacks no pages. It contains the pages of the previous
// branch again. But if the VMM may have replaced some of these pages, the next branch is based on
// the previous branch.
func TestFailedRebase(t *testing.T) {
	for _, c := range []struct {
		name   string
		set    func(*vmfake.VMMs)
		layers int // number of memory layers of the next branch
	}{
		{"not kept", func(f *vmfake.VMMs) { f.RebaseErr = &vm.Error{Code: vm.ErrNotKept, Err: errors.New("too late")} }, 2},
		{"half-way", func(f *vmfake.VMMs) { f.LateRebase = errors.New("no memory") }, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 0)
			defer w.stop()
			id := w.source(t)
			c.set(w.vmms)
			w.branch(t, id, "b", vm.BranchLive)
			w.vmms.RebaseErr, w.vmms.LateRebase = nil, nil
			w.branch(t, id, "c", vm.BranchLive)
			if memory, _ := w.layers(t, "c"); memory != c.layers {
				t.Errorf("%d memory layers, want %d", memory, c.layers)
			}
			w.KillAll()
			w.checkClean(t)
		})
	}
}

// A daemon may be killed after it has recorded a rebase and before the VMM has answered. The next
// daemon finds out what the memory is based on, even if the branch has been deleted since.
func TestRestartDuringARebase(t *testing.T) {
	for _, begun := range []bool{false, true} {
		for _, deleted := range []bool{false, true} {
			t.Run(fmt.Sprintf("begun %v, deleted %v", begun, deleted), func(t *testing.T) {
				w := newWorld(t, 0)
				id := w.source(t)
				w.branch(t, id, "a", vm.BranchLive)
				w.branch(t, id, "b", vm.BranchLive)
				s, err := w.Get(id)
				if err != nil {
					t.Fatal(err)
				}
				was, err := w.Snapshots().Detail("a")
				if err != nil {
					t.Fatal(err)
				}
				// This simulates a second rebase that is in progress.
				err = s.update(func(r *ledger.Record) {
					r.Rebasing = &durable.PendingRebase{To: *r.Rebased, Rebases: 1}
					r.Rebased = &durable.Rebased{ID: was.ID, Line: 1}
				})
				if err != nil {
					t.Fatal(err)
				}
				if !begun {
					w.fake(t, id).Rebases = 1
				}
				if deleted {
					if _, err := w.Snapshots().Delete("b", store.DeleteSingle); err != nil {
						t.Fatal(err)
					}
				}
				w.stop()
				w.start(t, 0)
				defer w.stop()
				if n, err := w.Recover(); n != 1 || err != nil {
					t.Fatalf("recovered %d, %v", n, err)
				}
				if list := w.Snapshots().List(); len(list) != 3 && !deleted || len(list) != 2 && deleted {
					t.Errorf("listed: %+v", list)
				}
				w.branch(t, id, "c", vm.BranchLive)
				memory, _ := w.layers(t, "c")
				if begun && memory != 4 || !begun && memory != 3 || w.asked(t, id).SinceRestore {
					t.Errorf("%d memory layers, since the restore: %v", memory, w.asked(t, id).SinceRestore)
				}
				if err := w.Snapshots().Verify(t.Context(), "c"); err != nil {
					t.Error(err)
				}
				w.KillAll()
				w.checkClean(t)
			})
		}
	}
}

// If the latest branch of a sandbox is lost, the sandbox continues, and its next branch does not
// need the lost branch.
func TestLostBranchBelow(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	w.branch(t, id, "b", vm.BranchLive)
	w.Snapshots().Quiesce()
	w.stop()
	if err := os.RemoveAll(filepath.Join(w.dir, "state", "snapshots", "b")); err != nil {
		t.Fatal(err)
	}
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 1 || err != nil {
		t.Fatalf("recovered %d, %v", n, err)
	}
	w.branch(t, id, "c", vm.BranchLive)
	if memory, _ := w.layers(t, "c"); memory != 2 || !w.asked(t, id).SinceRestore {
		t.Errorf("%d memory layers, asked %+v", memory, w.asked(t, id))
	}
	w.branch(t, id, "d", vm.BranchLive)
	if memory, _ := w.layers(t, "d"); memory != 3 || w.asked(t, id).SinceRestore {
		t.Errorf("%d memory layers, asked %+v", memory, w.asked(t, id))
	}
	w.KillAll()
	w.checkClean(t)
}

// A suspended state has one layer with the pages written since the latest branch, on top of that
// branch. Branches after the resume build on the suspended state. After a rollback, branches build
// on the snapshot that the sandbox was rolled back to.
func TestLinesEnd(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.branch(t, id, "b", vm.BranchLive)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	if memory, _ := w.layers(t, s.Info().StateTag); memory != 3 {
		t.Errorf("the suspended state has %d memory layers", memory)
	}
	if _, err := w.Snapshots().Delete("b", store.DeleteSingle); err != nil {
		t.Errorf("delete a branch of a suspended sandbox: %v", err)
	}
	if n := w.unnamed(t); n != 0 {
		t.Errorf("%d snapshots without a name that nobody needs", n)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.branch(t, id, "c", vm.BranchDiff)
	if memory, _ := w.layers(t, "c"); memory != 4 || w.asked(t, id).SinceRestore {
		t.Errorf("%d memory layers, asked %+v", memory, w.asked(t, id))
	}
	w.branch(t, id, "d", vm.BranchDiff)
	for _, c := range []struct {
		to     string
		layers int
	}{{"c", 5}, {"p", 2}} {
		if _, err := w.Rollback(t.Context(), id, c.to, unique.AsBefore); err != nil {
			t.Fatal(err)
		}
		w.branch(t, id, "of-"+c.to, vm.BranchLive)
		if memory, _ := w.layers(t, "of-"+c.to); memory != c.layers {
			t.Errorf("a branch after a rollback to %s has %d memory layers, want %d", c.to, memory, c.layers)
		}
	}
	w.KillAll()
	w.checkClean(t)
}
