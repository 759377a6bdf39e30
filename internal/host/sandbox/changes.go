package sandbox

import (
	"slices"

	"github.com/forkd/forkd/internal/host/tally"
)

// countChanges restarts the counting of changes after a complete branch. shared is how many bytes
// of memory the sandbox now shares with the branch.
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

// manyBranches is how many branches a sandbox remembers before it removes deleted ones from the
// list.
const manyBranches = 64

// reachable returns a copy of the IDs of branches. It drops deleted branches from a long list,
// because the list is part of a record that is written often.
func (m *Manager) reachable(branches []string) []string {
	if len(branches) < manyBranches {
		return slices.Clone(branches)
	}
	return m.cfg.Store.Known(branches)
}
