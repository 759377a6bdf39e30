package soak

import (
	"sync"
	"time"
)

// Kind is a kind of fault.
type Kind string

// The kinds of faults.
const (
	KillDaemon Kind = "kill_daemon" // the daemon is killed, and the test starts it again
	KillNet    Kind = "kill_net"    // forkd-net is killed, and the daemon starts it again
	KillVMM    Kind = "kill_vmm"    // the VMM of a sandbox, or a VMM of the pool, is killed
	FillDisk   Kind = "fill_disk"   // the file system of the state directory is full
	FillRAM    Kind = "fill_ram"    // the tmpfs of the memory layers is full
	StallDisk  Kind = "stall_disk"  // writes to the file system of the state directory block
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{KillDaemon, KillNet, KillVMM, FillDisk, FillRAM, StallDisk} }

// fault is one occurrence of a fault, with the time during which it could cause errors.
type fault struct {
	kind     Kind
	id       string // id of the sandbox whose VM was killed
	from, to time.Time
}

// FaultLog records the faults and their times. An error is expected only if one of the faults
// explains it.
type FaultLog struct {
	mu     sync.Mutex
	faults []*fault
	counts map[Kind]int
}

// NewFaultLog returns a log without faults.
func NewFaultLog() *FaultLog { return &FaultLog{counts: map[Kind]int{}} }

// Begin records a fault just before it is caused. The caller calls end when the fault can no longer
// cause errors. For a killed VMM, the caller does not call end, because later requests to this VM
// also fail.
func (l *FaultLog) Begin(kind Kind, id string) (end func()) {
	f := &fault{kind: kind, id: id, from: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, f)
	l.counts[kind]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		f.to = time.Now()
	}
}

// explains returns the first of the kinds that was active at some time since the given time.
func (l *FaultLog) explains(from time.Time, kinds ...Kind) (Kind, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kind := range kinds {
		for _, f := range l.faults {
			if f.kind == kind && (f.to.IsZero() || f.to.After(from)) {
				return kind, true
			}
		}
	}
	return "", false
}

// killed reports whether the VM of a sandbox was killed since it was started.
func (l *FaultLog) killed(id string, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults {
		if f.kind == KillVMM && f.id == id && !f.from.Before(since) {
			return true
		}
	}
	return false
}

// Count returns how many faults of a kind occurred.
func (l *FaultLog) Count(kind Kind) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[kind]
}
