package sandbox

import (
	"context"
	"os"

	"github.com/forkd/forkd/internal/host/chain"
)

// refuseWriters ensures that no process can change state, memory and frozen tops any more. A VMM
// that its guest has taken over could have kept a descriptor with which it wrote them. Tops of
// earlier branches are checked again, because those branches may have failed before.
//
// Such a VMM is given no more files: each could grow until the VMM ends.
func (b *branch) refuseWriters() error {
	saved := b.saved()
	for _, f := range saved {
		_ = f.Close() // no buffered data could fail to be written
	}
	return b.refuse(append(saved, b.lower...))
}

// saved returns the files of state and memory. A disk-only branch has none.
func (b *branch) saved() []*os.File {
	if b.state == nil {
		return nil
	}
	return []*os.File{b.state, b.layer}
}

// refuse returns an error if the VM has one of the files open for writing, and records that it is
// given no more files.
func (b *branch) refuse(files []*os.File) error {
	for _, f := range files {
		if err := chain.NoWriters(f.Name(), b.m.writers); err != nil {
			b.v.kept = err
			return err
		}
	}
	return nil
}

// refuseKeeper ensures that a VMM that has refused a branch does not keep files of the branch. They
// are removed now, and a file that the VMM keeps could grow until the VMM ends. top is the new disk
// top, which the VMM may use in spite of its answer; nil if there is none.
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
		_ = f.Close() // no buffered data could fail to be written
	}
	return b.refuse(unused)
}
