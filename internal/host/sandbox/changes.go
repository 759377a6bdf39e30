package sandbox

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/tally"
)

// countChanges goes on counting after a branch that is complete, of whose memory the sandbox shares
// so many bytes now.
func (b *branch) countChanges(shared uint64) {
	dirty := b.done.Save.DirtyBytes
	base := &tally.Written{Memory: dirty - min(dirty, shared), Disk: b.fresh}
	switch {
	case b.stays():
		b.s.since.Begin(*base)
	case b.op == "branch":
		b.s.since.Carry(tally.Written{Memory: dirty, Disk: b.topBytes}, base)
	default:
		b.s.since.Carry(tally.Written{Memory: dirty, Disk: b.topBytes}, nil)
	}
}

// manyBranches is how many branches a sandbox remembers before it looks which of them are left.
const manyBranches = 64

// reachable returns a copy of the IDs of branches, without those that have been deleted if there are
// many: the list is in a record that is written often.
func (m *Manager) reachable(branches []string) []string {
	if len(branches) < manyBranches {
		return slices.Clone(branches)
	}
	return m.cfg.Store.Known(branches)
}

// diskBytes returns what a file takes on disk, 0 if there is none.
func diskBytes(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512 // st_blocks is in units of 512 bytes, stat(2)
}
