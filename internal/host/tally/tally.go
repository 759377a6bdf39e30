// Package tally counts what may have changed a sandbox since it was last at a snapshot: requests,
// and bytes written to memory and disk, over all of its VMs.
//
// Its users say when a sandbox is at a snapshot, and what its VM has written.
package tally

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Written is how much of a sandbox was written since its latest branch or rollback, in bytes. The
// kernel of an idle guest writes a little too.
type Written struct {
	Memory uint64
	Disk   uint64
}

// DiskBytes returns what a file takes on disk, 0 if there is none.
func DiskBytes(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512 // st_blocks is in units of 512 bytes, stat(2)
}

// minus returns by how much w exceeds other; 0 if it does not.
func (w Written) minus(other Written) Written {
	return Written{w.Memory - min(w.Memory, other.Memory), w.Disk - min(w.Disk, other.Disk)}
}

func (w Written) plus(other Written) Written {
	return Written{w.Memory + other.Memory, w.Disk + other.Disk}
}

// Tally counts what may have changed a sandbox since it was last at a snapshot: forked from it,
// branched to it, or rolled back to it. It costs each request one counter, and does not survive a
// restart of the daemon.
type Tally struct {
	calls atomic.Uint64 // requests to the guest that may change it, counted at begin and end

	mu sync.Mutex
	// +checklocks:mu
	unknown bool // the other fields are invalid: an earlier daemon was at the snapshot
	// +checklocks:mu
	at uint64 // value of calls at the snapshot
	// +checklocks:mu
	base *Written // written by the present VM then, or at the first later measurement; nil: not measured
	// +checklocks:mu
	earlier Written // written by earlier VMs, or before a branch that reset the count
}

// CallsSince returns how many requests have begun or ended since the snapshot; nil: unknown.
func (c *Tally) CallsSince() *uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown {
		return nil
	}
	n := c.calls.Load() - c.at
	return &n
}

// Written returns how much was written since the snapshot; the VM has written now in total. The
// first call after a fork, a rollback or a resumption sets the base for later ones, because
// measuring would delay these operations.
func (c *Tally) Written(now Written) Written {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base == nil {
		c.base = &now
	}
	c.base.Memory, c.base.Disk = min(c.base.Memory, now.Memory), min(c.base.Disk, now.Disk)
	return c.earlier.plus(now.minus(*c.base))
}

// Mark records that the sandbox was at a snapshot when its count of calls was calls.
func (c *Tally) Mark(calls uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown, c.at, c.base, c.earlier = false, calls, nil, Written{}
}

// Begin sets the base: the bytes that the VM had written at the mark and still counts.
func (c *Tally) Begin(base Written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = &base
}

// Reset records that the sandbox is at a snapshot now.
func (c *Tally) Reset() { c.Mark(c.calls.Load()) }

// Forget records that the sandbox may have changed in uncounted ways.
func (c *Tally) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown, c.base, c.earlier = true, nil, Written{}
}

// Carry adds the bytes written until now, before the VM resets its count to base. base is nil if
// the VM ends.
func (c *Tally) Carry(now Written, base *Written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil {
		c.earlier = c.earlier.plus(now.minus(*c.base))
	}
	c.base = base
}

// CarryDisk is Carry for a disk-only branch. now is the number of bytes written to the disk so far,
// and base is the new count of the disk.
func (c *Tally) CarryDisk(now, base uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil {
		c.earlier.Disk += now - min(now, c.base.Disk)
		c.base.Disk = base
	}
}

// Count counts a request that may change the sandbox, at its begin and at its end.
func (c *Tally) Count() { c.calls.Add(1) }

// Calls returns the present count, for Mark.
func (c *Tally) Calls() uint64 { return c.calls.Load() }
