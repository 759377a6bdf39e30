package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/forkd/forkd/internal/host/writers"
)

// refuseWriters returns an error if a process could still change the branch's state, memory or
// frozen tops. A compromised VMM could have kept a descriptor with which it wrote these files.
// refuseWriters also checks tops of earlier branches, because those branches may have failed before
// their tops were checked.
func (b *branch) refuseWriters() error {
	return b.refuse(slices.Concat(b.closeSaved(), b.lower, b.tops.Synced()))
}

// closeSaved closes the files for state and memory, and returns them. A disk-only branch has none.
func (b *branch) closeSaved() []*os.File {
	if b.state == nil {
		return nil
	}
	_, _ = b.state.Close(), b.layer.Close() // nothing is buffered, so no data can be lost here
	return []*os.File{b.state, b.layer}
}

func (b *branch) refuse(files []*os.File) (err error) {
	for _, f := range files {
		err = cmp.Or(err, b.m.refuseWriter(b.s, b.v, f.Name()))
	}
	return err
}

// refuseWriter returns an error if the VMM of s should have closed a file, but has it open for
// writing. A new child process of the daemon can also have the file open until it executes its
// program, so refuseWriter waits for such processes. If the VMM has the file open, refuseWriter
// also kills the VMM. A guest may have taken over this VMM and make the file grow, and no process
// can safely remove the file while the VMM runs (see package writers).
func (m *Manager) refuseWriter(s *Sandbox, v *liveVM, path string) error {
	err := writers.NoneAfter(path, m.writers, m.cfg.VMMs.AwaitStarts)
	if errors.As(err, new(*writers.Error)) {
		m.cfg.Log.Error("a VMM is killed", "sandbox", s.id, "reason", err)
		m.killer.Kill(s.id, v.vmm)
		err = fmt.Errorf("%w; its VMM was killed", err)
	}
	return err
}

// refuseKeeper returns an error if a VMM that has refused a branch still has a file of the branch
// open. The parameter top is the new disk top, or nil. If the VMM may use the new top even after
// its refusal, refuseKeeper does not check the top.
func (b *branch) refuseKeeper(top *os.File) error {
	unused := b.closeSaved()
	if top != nil {
		rec, v, err := b.s.withVM(b.op)
		if err != nil {
			return err
		}
		if stats, err := v.vmm.Stats(context.Background()); err == nil && rec.Pending != nil &&
			stats.TopSwaps <= rec.Pending.Swaps {
			_ = top.Close()
			b.tops.CloseNew()
			unused = append(append(unused, top), b.tops.New...)
		}
	}
	return b.refuse(unused)
}
