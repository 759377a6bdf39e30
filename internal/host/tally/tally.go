// Package tally counts changes of a sandbox since it was last at a snapshot, that is, since its
// state was equal to a snapshot. It counts requests that may have changed the sandbox, and bytes
// written to memory and disk, over all VMs of the sandbox.
//
// The callers say when a sandbox is at a snapshot, and how much its VM has written.
package tally

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Written holds the number of bytes of a sandbox that were written since its latest branch or
// rollback. Even for an idle sandbox the number is not zero, because the guest's kernel writes a
// little.
type Written struct {
	Memory uint64
	Disk   uint64
}

// DiskBytes returns how many bytes a file takes on disk, or 0 if the file does not exist.
func DiskBytes(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512 // st_blocks counts units of 512 bytes, stat(2)
}

// minus returns w minus other. A difference below 0 counts as 0.
func (w Written) minus(other Written) Written {
	return Written{w.Memory - min(w.Memory, other.Memory), w.Disk - min(w.Disk, other.Disk)}
}

func (w Written) plus(other Written) Written {
	return Written{w.Memory + other.Memory, w.Disk + other.Disk}
}

// Tally counts changes of a sandbox since it was last at a snapshot. A sandbox is at a snapshot
// when it has been forked from the snapshot, branched to it, or rolled back to it. A request only
// increments a counter. The counts are lost when the daemon exits.
type Tally struct {
	calls atomic.Uint64 // incremented when a request that may change the guest begins, and when it ends

	mu sync.Mutex
	// +checklocks:mu
	unknown bool // the sandbox was at the snapshot under an earlier daemon, so the other fields are not valid
	// +checklocks:mu
	at uint64 // value of calls when the sandbox was at the snapshot
	// +checklocks:mu
	// what the present VM had written when the sandbox was at the snapshot, or at the first
	// measurement after that; nil: not measured
	base *Written
	// +checklocks:mu
	// bytes that base does not cover: bytes written by earlier VMs, or before a branch that restarted
	// the VM's count
	earlier Written
}

// CallsSince returns how many times a request has begun or ended since the snapshot. It returns nil
// if the number is unknown.
func (c *Tally) CallsSince() *uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown {
		return nil
	}
	n := c.calls.Load() - c.at
	return &n
}

// Written returns the number of bytes written since the snapshot, given the number that the VM has
// written in total. The first call after a fork, a rollback or a resumption returns zero and only
// sets the base, because a measurement during the fork, rollback or resumption would have delayed
// that operation.
func (c *Tally) Written(now Written) Written {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base == nil {
		c.base = &now
	}
	c.base.Memory, c.base.Disk = min(c.base.Memory, now.Memory), min(c.base.Disk, now.Disk)
	return c.earlier.plus(now.minus(*c.base))
}

// Mark records that the sandbox was at a snapshot when the method Calls returned the given count.
func (c *Tally) Mark(calls uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown, c.at, c.base, c.earlier = false, calls, nil, Written{}
}

// Begin sets the base: the number of bytes that the VM had already written, by its own count, when
// the sandbox was at the snapshot.
func (c *Tally) Begin(base Written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = &base
}

func (c *Tally) Reset() { c.Mark(c.calls.Load()) }

// Forget records that the sandbox may have changed in ways that were not counted.
func (c *Tally) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown, c.base, c.earlier = true, nil, Written{}
}

// Carry adds the number of bytes that the VM has written. It is called before the VM restarts its
// count at the base or, if no base is given, before the VM ends.
func (c *Tally) Carry(now Written, base *Written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil {
		c.earlier = c.earlier.plus(now.minus(*c.base))
	}
	c.base = base
}

// CarryDisk is like Carry for a disk-only branch, which affects only the count of the disk. The
// parameters are the present value of that count (now), and the value from which the VM continues
// to count (base).
func (c *Tally) CarryDisk(now, base uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil {
		c.earlier.Disk += now - min(now, c.base.Disk)
		c.base.Disk = base
	}
}

// Count must be called when a request that may change the sandbox begins, and when it ends.
func (c *Tally) Count() { c.calls.Add(1) }

// Calls returns the present number of calls, for Mark.
func (c *Tally) Calls() uint64 { return c.calls.Load() }
