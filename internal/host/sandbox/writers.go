package sandbox

import (
	"context"
	"os"

	"github.com/forkd/forkd/internal/host/chain"
)

// refuseWriters returns an error if a process could still change the branch's state, memory or
// frozen tops. A compromised VMM could have kept a descriptor with which it wrote these files.
// refuseWriters also checks tops of earlier branches, because those branches may have failed before
// they were checked.
//
// A VMM that has kept a descriptor receives no more files, because each file could grow until the
// VMM ends.
func (b *branch) refuseWriters() error {
	saved := b.saved()
	for _, f := range saved {
		_ = f.Close() // nothing is buffered, so no data can be lost here
	}
	return b.refuse(append(saved, b.lower...))
}

// saved returns the files for state and memory. A disk-only branch has none.
func (b *branch) saved() []*os.File {
	if b.state == nil {
		return nil
	}
	return []*os.File{b.state, b.layer}
}

// refuse returns an error if the VMM has one of the files open for writing. It then also sets
// b.v.kept, so that the VMM receives no more files.
func (b *branch) refuse(files []*os.File) error {
	for _, f := range files {
		if err := chain.NoWriters(f.Name(), b.m.writers); err != nil {
			b.v.kept = err
			return err
		}
	}
	return nil
}

// refuseKeeper returns an error if a VMM that has refused a branch has kept a file of the branch.
// These files are about to be removed, but a removed file that the VMM keeps open could still grow
// until the VMM ends. The parameter top is the new disk top, or nil. If the VMM may use the new top
// even after its refusal, refuseKeeper does not check the top.
func (b *branch) refuseKeeper(top *os.File) error {
	unused := b.saved()
	if top != nil {
		rec, v, err := b.s.withVM(b.op)
		if err != nil {
			return err
		}
		if stats, err := v.vmm.Stats(context.Background()); err == nil && rec.Pending != nil &&
			stats.TopSwaps <= rec.Pending.Swaps {
			unused = append(unused, top)
		}
	}
	for _, f := range unused {
		_ = f.Close() // nothing is buffered, so no data can be lost here
	}
	return b.refuse(unused)
}
