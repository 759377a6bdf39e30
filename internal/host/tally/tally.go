// Package tally counts what may have changed a sandbox since it was last at a snapshot: requests, and
// memory and disk that were written, over all of its VMs.
//
// When a sandbox is at a snapshot, and what its VM has written, is for its users to say.
package tally

import (
	"sync"
	"sync/atomic"
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

// Tally tells what may have changed a sandbox since it was last at a snapshot: forked from it,
// branched to it, or put back to it. It costs requests a counter, and survives no restart of the
// daemon.
type Tally struct {
	calls atomic.Uint64 // requests to the guest that may change it, begun or ended

	mu      sync.Mutex
	unknown bool     // the rest says nothing: the daemon was not there
	at      uint64   // calls, then
	base    *Written // what the present VM had written, then or when it was first measured after; nil: not measured
	earlier Written  // by VMs before it, or before a branch that went with its children
}

// CallsSince returns how many requests have begun or ended since; nil: not known.
func (c *Tally) CallsSince() *uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown {
		return nil
	}
	n := c.calls.Load() - c.at
	return &n
}

// Written returns how much has been written since, of a VM that has written now. The first call
// after a fork, a rollback or a resume sets what later ones count from: measuring takes longer than
// these have time for.
func (c *Tally) Written(now Written) Written {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base == nil {
		c.base = &now
	}
	c.base.Memory, c.base.Disk = min(c.base.Memory, now.Memory), min(c.base.Disk, now.Disk)
	return c.earlier.plus(now.minus(*c.base))
}

// Mark notes that the sandbox was at a snapshot when it had had so many calls.
func (c *Tally) Mark(calls uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown, c.at, c.base, c.earlier = false, calls, nil, Written{}
}

// Begin counts from base, which the VM had written at the mark and did not get rid of.
func (c *Tally) Begin(base Written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = &base
}

// Reset notes that the sandbox is at a snapshot now.
func (c *Tally) Reset() { c.Mark(c.calls.Load()) }

// Forget notes that the sandbox may have changed in ways that were not counted.
func (c *Tally) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown, c.base, c.earlier = true, nil, Written{}
}

// Carry adds what was written until now, of which the VM gets rid: base is what is left. It is nil
// if the VM ends.
func (c *Tally) Carry(now Written, base *Written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil {
		c.earlier = c.earlier.plus(now.minus(*c.base))
	}
	c.base = base
}

// CarryDisk is Carry for a branch of the disk alone: now was written to the disk until now, and base is
// what is left.
func (c *Tally) CarryDisk(now, base uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil {
		c.earlier.Disk += now - min(now, c.base.Disk)
		c.base.Disk = base
	}
}

// Count counts a request that may change the sandbox, when it begins and when it ends.
func (c *Tally) Count() { c.calls.Add(1) }

// Calls returns how many were counted, for Mark.
func (c *Tally) Calls() uint64 { return c.calls.Load() }
