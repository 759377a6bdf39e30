package sandbox

import (
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Written is how much of a sandbox has been written since its latest branch or rollback, in bytes.
// The kernel of an idle guest writes a little too.
type Written struct {
	Memory uint64
	Disk   uint64
}

// minus returns what w has more than other.
func (w Written) minus(other Written) Written {
	return Written{w.Memory - min(w.Memory, other.Memory), w.Disk - min(w.Disk, other.Disk)}
}

func (w Written) plus(other Written) Written {
	return Written{w.Memory + other.Memory, w.Disk + other.Disk}
}

// changes tells what may have changed a sandbox since it was last at a snapshot: forked from it,
// branched to it, or put back to it. It costs requests a counter, and survives no restart of the
// daemon.
type changes struct {
	calls atomic.Uint64 // requests to the guest that may change it, begun or ended

	mu      sync.Mutex
	unknown bool     // the rest says nothing: the daemon was not there
	at      uint64   // calls, then
	base    *Written // what the present VM had written, then or when it was first measured after; nil: not measured
	earlier Written  // by VMs before it, or before a branch that went with its children
}

// callsSince returns how many requests have begun or ended since; nil: not known.
func (c *changes) callsSince() *uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown {
		return nil
	}
	n := c.calls.Load() - c.at
	return &n
}

// written returns how much has been written since, of a VM that has written now. The first call
// after a fork, a rollback or a resume sets what later ones count from: measuring takes longer than
// these have time for.
func (c *changes) written(now Written) Written {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base == nil {
		c.base = &now
	}
	c.base.Memory, c.base.Disk = min(c.base.Memory, now.Memory), min(c.base.Disk, now.Disk)
	return c.earlier.plus(now.minus(*c.base))
}

// mark notes that the sandbox was at a snapshot when it had had so many calls.
func (c *changes) mark(calls uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown, c.at, c.base, c.earlier = false, calls, nil, Written{}
}

// begin counts from base, which the VM had written at the mark and did not get rid of.
func (c *changes) begin(base Written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = &base
}

// reset notes that the sandbox is at a snapshot now.
func (c *changes) reset() { c.mark(c.calls.Load()) }

// forget notes that the sandbox may have changed in ways that were not counted.
func (c *changes) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown, c.base, c.earlier = true, nil, Written{}
}

// carry adds what was written until now, of which the VM gets rid: base is what is left. It is nil
// if the VM ends.
func (c *changes) carry(now Written, base *Written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil {
		c.earlier = c.earlier.plus(now.minus(*c.base))
	}
	c.base = base
}

// stays reports whether the branch becomes the snapshot that the sandbox is at. One that goes with
// others, or is a suspended state, does not.
func (b *branch) stays() bool { return b.op == "branch" && !b.req.Transient }

// countChanges goes on counting after a branch that is complete, of whose memory the sandbox shares
// so many bytes now.
func (b *branch) countChanges(shared uint64) {
	dirty := b.done.Save.DirtyBytes
	base := &Written{Memory: dirty - min(dirty, shared), Disk: b.fresh}
	switch {
	case b.stays():
		b.s.since.begin(*base)
	case b.op == "branch":
		b.s.since.carry(Written{Memory: dirty, Disk: b.topBytes}, base)
	default:
		b.s.since.carry(Written{Memory: dirty, Disk: b.topBytes}, nil)
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
