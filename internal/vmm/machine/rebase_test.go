package machine_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/machine"
)

// dirty returns how many bytes of private pages the machine has.
func (v *testVM) dirty(t *testing.T) uint64 {
	t.Helper()
	st, err := v.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return st.GuestDirtyBytes
}

// A machine that is rebased onto each of its branches saves only the pages that were written since
// the latest branch. All snapshots are complete, even after a branch without a rebase, after a
// rollback to an earlier branch, and after a full branch, which saves all pages in one layer.
func TestLineOfBranches(t *testing.T) {
	h := newHost(t, 2)
	parent := h.boot(t)
	m := newModel(t, parent, 6)
	base := parent.save(t)
	source := h.fork(t, base)
	type link struct {
		*snapshot
		model *model
	}
	var line []link
	// The source was restored from the snapshot in `first`, and its memory is based on the snapshot
	// in `below`.
	below, first := base, base
	branch := func(mode vm.BranchMode, since bool) (vmmproto.BranchResult, *snapshot) {
		m.change(t, source, uint64(60+len(line)))
		at := below
		if since {
			at = first
		}
		s, r := source.branchWith(t, at, machine.BranchConfig{Mode: mode, Keep: true, SinceRestore: since})
		if !r.Kept {
			t.Fatalf("the pages of a %v branch are not kept", mode)
		}
		line = append(line, link{s, m.clone()})
		return r, s
	}
	rebase := func(s *snapshot) {
		if r := source.rebase(t, s); r.Bytes == 0 || r.Mappings == 0 {
			t.Errorf("rebased onto branch %d: %+v", len(line), r)
		}
		below = s
	}
	for _, mode := range []vm.BranchMode{vm.BranchLive, vm.BranchDiff, vm.BranchLive} {
		_, s := branch(mode, false)
		rebase(s)
	}
	m.check(t, source, "rebased source")
	_, _ = branch(vm.BranchLive, false) // the machine is not rebased onto this branch
	m.change(t, source, 99)
	if err := source.Pause(); err != nil {
		t.Fatal(err)
	}
	s, delta := source.branchWith(t, below, machine.BranchConfig{Mode: vm.BranchDiff, Keep: true})
	line = append(line, link{s, m.clone()})
	rebase(s)
	if n := source.dirty(t); n != 0 {
		t.Errorf("%d bytes of a machine that stood still are private", n)
	}
	if err := source.Resume(); err != nil {
		t.Fatal(err)
	}
	all, s := branch(vm.BranchLive, true)
	if all.Save.DirtyBytes <= delta.Save.DirtyBytes {
		t.Errorf("all that was written is %d bytes, the last of it %d", all.Save.DirtyBytes, delta.Save.DirtyBytes)
	}
	rebase(s)
	_, s = branch(vm.BranchLive, false) // releases the earlier layers
	rebase(s)
	whole := source.branch(t, below, vm.BranchFull)
	line = append(line, link{whole, m.clone()})

	source.restore(t, line[1].snapshot)
	below, first, m = line[1].snapshot, line[1].snapshot, line[1].model.clone()
	m.check(t, source, "rolled back")
	_, s = branch(vm.BranchLive, false)
	rebase(s)
	m.check(t, source, "source")
	if err := source.Pause(); err != nil { // a running source would take CPU time from the children
		t.Fatal(err)
	}
	child := h.newVM(t)
	for i, l := range line {
		child.restore(t, l.snapshot)
		l.model.check(t, child, fmt.Sprintf("branch %d of the line", i+1))
	}
}

// A rebase onto any branch except the latest one is refused, and changes nothing.
func TestRebaseIsRefused(t *testing.T) {
	h := newHost(t, 1)
	parent := h.boot(t)
	m := newModel(t, parent, 7)
	base := parent.save(t)
	source := h.fork(t, base)
	refused := func(what string, s *snapshot, serial uint64) {
		t.Helper()
		_, err := source.Rebase(serial, open(t, s.layers[len(s.layers)-1], os.O_RDONLY))
		if !errors.Is(err, vm.ErrNotKept) {
			t.Errorf("%s: %v", what, err)
		}
		if st, err := source.Stats(); err != nil || st.Rebases != 0 {
			t.Errorf("%s: %+v, %v", what, st, err)
		}
	}
	m.change(t, source, 1)
	plain := source.branch(t, base, vm.BranchLive)
	refused("a branch of which nothing was kept", plain, source.serial)
	s, _ := source.branchWith(t, base, machine.BranchConfig{Mode: vm.BranchLive, Keep: true})
	refused("another branch", s, source.serial-1)
	if _, err := source.Rebase(source.serial, open(t, s.state, os.O_RDONLY)); err == nil {
		t.Error("a file that is no layer was taken")
	}
	m.change(t, source, 2)
	next, r := source.branchWith(t, base, machine.BranchConfig{Mode: vm.BranchDiff, Keep: true})
	if !r.Kept {
		t.Error("nothing was kept")
	}
	branched := m.clone()
	refused("the branch before", s, source.serial-1)
	source.restore(t, next)
	refused("a branch from before a rollback", next, source.serial)
	branched.check(t, source, "source")
}
