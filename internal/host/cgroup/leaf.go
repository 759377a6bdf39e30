package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Leaf is the cgroup of one VM process. A nil Leaf stands for a process without limits. The methods
// of Leaf may be called concurrently.
type Leaf struct {
	tree *Tree
	dir  string

	mu sync.Mutex
	// +checklocks:mu
	limits vm.Limits
	// +checklocks:mu
	ram uint64 // memory of the guest in bytes
	// +checklocks:mu
	spare uint64 // bytes permitted above the memory limit, for copies in RAM that belong to snapshots
	// +checklocks:mu
	copies copies // files on tmpfs that the VM process has written for snapshots of this daemon
	// +checklocks:mu
	before uint64 // bytes that an earlier daemon permitted above the memory limit
	// +checklocks:mu
	hurry int // number of callers of Hurry that need disk I/O without limits
	// +checklocks:mu
	found bool // an earlier daemon made the leaf, and Set was not called since
	// +checklocks:mu
	have map[string]string // known content of the cgroup's files, by file name
}

// New makes a leaf for a VM with the given memory in bytes. The leaf has the default limits. If
// this host does not support limits, New returns nil.
func (t *Tree) New(name string, ram uint64) (*Leaf, error) {
	if t == nil || t.dir == "" {
		return nil, nil
	}
	l := t.leaf(name)
	err := os.Mkdir(l.dir, 0o755)
	if errors.Is(err, fs.ErrExist) { // an earlier VM with this name has ended and left its leaf
		if err = l.Remove(); err == nil {
			err = os.Mkdir(l.dir, 0o755)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	l.mu.Lock()
	for _, f := range filesOf(vm.Limits{}, t.disk, 0, 0) {
		if f.controller != "memory" {
			l.have[f.name] = f.value // a new cgroup has these values already
		}
	}
	l.mu.Unlock()
	err = l.Set(vm.Limits{}, ram)
	for _, f := range []file{{"memory", "memory.oom.group", "1"}, {"pids", "pids.max", fmt.Sprint(maxPIDs)}} {
		if err == nil && t.has(f.controller) {
			err = write(l.dir, f.name, f.value)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Remove())
	}
	return l, nil
}

// NewShared makes a leaf for several processes of one kind, which share limits on memory and
// threads. When the processes reach the memory limit, the kernel kills one of them, and not all.
func (t *Tree) NewShared(name string, memoryMiB uint64, pids int) (*Leaf, error) {
	l, err := t.New(name, 0)
	if l == nil {
		return nil, err
	}
	err = l.Set(vm.Limits{MemoryMiB: memoryMiB}, 0)
	for _, f := range []file{{"memory", "memory.oom.group", "0"}, {"pids", "pids.max", fmt.Sprint(pids)}} {
		if err == nil && t.has(f.controller) {
			err = write(l.dir, f.name, f.value)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Remove())
	}
	return l, nil
}

// Find returns the leaf that an earlier daemon made, or nil. Its limits are unknown until Set is
// called.
func (t *Tree) Find(name string) *Leaf {
	if t == nil || t.dir == "" {
		return nil
	}
	l := t.leaf(name)
	if _, err := os.Stat(l.dir); err != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found = true
	return l
}

func (t *Tree) leaf(name string) *Leaf {
	return &Leaf{tree: t, dir: filepath.Join(t.dir, name), have: make(map[string]string)}
}

func (t *Tree) has(controller string) bool { return slices.Contains(t.enabled, controller) }

// Open opens the leaf's directory, so that a process can be started in the leaf. It returns nil for
// a nil Leaf.
func (l *Leaf) Open() (*os.File, error) {
	if l == nil {
		return nil, nil
	}
	fd, err := unix.Open(l.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a cgroup: %w", err)
	}
	return os.NewFile(uintptr(fd), l.dir), nil
}

// Set replaces the limits. It writes only values that have changed: for a new leaf with default
// limits it writes nothing. If a process uses more memory than its new limit, the kernel kills the
// process; see Usage.OwnBytes.
func (l *Leaf) Set(limits vm.Limits, ram uint64) error {
	if l == nil {
		if limits != (vm.Limits{}) {
			return errors.New("set limits: the VM process was started where there were none, or by a daemon that had none")
		}
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limits, l.ram = limits, ram
	if l.found {
		l.found, l.spare = false, l.sparedLocked()
		l.before = l.spare - min(l.spare, lag())
	}
	return l.writeLocked()
}

// sparedLocked returns how many bytes an earlier daemon has permitted above the memory limit. A
// copy for that daemon may still be in progress and need these bytes.
//
// +checklocks:l.mu
func (l *Leaf) sparedLocked() uint64 {
	most, err := stat(l.dir, "memory.max", "")
	if least := memoryOf(l.limits, l.ram); err == nil && most > least {
		return most - least
	}
	return 0
}

// +checklocks:l.mu
func (l *Leaf) writeLocked() error {
	limits := l.limits
	if l.hurry > 0 {
		limits.IOBytesPerSecond, limits.IOOpsPerSecond = 0, 0
	}
	for _, f := range filesOf(limits, l.tree.disk, l.ram, l.spare) {
		if !l.tree.has(f.controller) || l.have[f.name] == f.value {
			continue
		}
		delete(l.have, f.name)
		if err := write(l.dir, f.name, f.value); err != nil {
			if f.name == "memory.swap.max" && errors.Is(err, fs.ErrNotExist) {
				continue // the kernel was built without swap
			}
			return err
		}
		l.have[f.name] = f.value
	}
	return nil
}

// Spare raises the memory limit for a copy. When a branch or a parent is made, the VM process
// copies its guest's memory to the given file. If the file is on tmpfs, the kernel charges the copy
// to the leaf, even though the copy belongs to the snapshot. When the copy is complete, Tighten
// lowers the limit. The bytes that the copy takes stay permitted while the file exists.
func (l *Leaf) Spare(layer *os.File) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	charged, err := l.copies.add(layer)
	if err != nil || !charged {
		return err
	}
	return l.spareLocked(l.ram)
}

// Tighten lowers the memory limit by the part of Spare's allowance that the copy did not use.
func (l *Leaf) Tighten() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if charged, err := stat(l.dir, "memory.stat", "shmem"); err == nil {
		l.before = min(l.before, charged) // the copies for the earlier daemon take at most the charged memory
	}
	_ = l.spareLocked(0) // fails only if the process has ended
}

// statLag is the maximum error, in bytes per CPU, of the kernel's figures about the memory of a
// cgroup: 64 pages (mm/memcontrol.c, MEMCG_CHARGE_BATCH).
const statLag = 64 * vm.PageSize

// Hurry removes the leaf's limits on disk I/O until done() is called. With these limits, data that
// the process has written would be flushed slowly even while the daemon waits for the flush.
func (l *Leaf) Hurry() (done func()) {
	if l == nil {
		return func() {}
	}
	l.hurryBy(1)
	return func() { l.hurryBy(-1) }
}

func (l *Leaf) hurryBy(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hurry += n
	if !l.found { // the limits of a found leaf are unknown
		_ = l.writeLocked() // fails only if the process has ended
	}
}

func lag() uint64 { return statLag * uint64(runtime.NumCPU()) }

// spareLocked raises the memory limit by the memory that the copies take on tmpfs, plus the given
// number of bytes. All other memory that is charged to the leaf counts against the limit.
//
// +checklocks:l.mu
func (l *Leaf) spareLocked(more uint64) error {
	charged, err := stat(l.dir, "memory.stat", "shmem")
	if err != nil {
		return err
	}
	l.spare = min(charged, l.before+l.copies.bytes(l.ram)) + more + lag()
	return l.writeLocked()
}

// Usage returns the present and total usage of the leaf's process. The usage of a nil Leaf is zero.
func (l *Leaf) Usage() (Usage, error) {
	if l == nil {
		return Usage{}, nil
	}
	return usageOf(l.dir)
}

// limitMiB returns the memory limit of the process.
func (l *Leaf) limitMiB() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return memoryOf(l.limits, l.ram) >> 20
}

// Killed reports why the kernel killed the leaf's process for its memory usage. If byLimit is set,
// the process exceeded its own limit; otherwise the host, or a cgroup above the leaf, ran out of
// memory. The reason is empty if the kernel did not kill the process for its memory usage.
func (l *Leaf) Killed() (byLimit bool, why string) {
	if l == nil {
		return false, ""
	}
	if n, err := stat(l.dir, "memory.events.local", "oom_kill"); err != nil || n == 0 {
		return false, ""
	}
	if n, _ := stat(l.dir, "memory.events.local", "oom"); n > 0 {
		return true, fmt.Sprintf("killed by its memory limit (%d MiB)", l.limitMiB())
	}
	return false, "killed by the kernel because the host, or a cgroup above, was out of memory"
}

// OOMKills returns how many of the leaf's processes the kernel has killed because the leaf, a
// cgroup above it, or the host ran out of memory. It is 0 for a nil Leaf.
func (l *Leaf) OOMKills() uint64 {
	if l == nil {
		return 0
	}
	n, _ := stat(l.dir, "memory.events.local", "oom_kill") // 0 after an error, for example if the controller is missing
	return n
}

// How often, and at which interval, Remove tries again while the remaining processes of a leaf end.
const (
	removeTries = 50
	removePause = 10 * time.Millisecond
)

// RemoveEmpty removes a leaf without processes, and kills nothing. It reports whether the leaf is gone.
func (l *Leaf) RemoveEmpty() bool {
	if l == nil {
		return true
	}
	err := unix.Rmdir(l.dir)
	return err == nil || err == unix.ENOENT
}

// Remove kills the remaining processes of a leaf, and removes the leaf.
func (l *Leaf) Remove() error {
	if l == nil {
		return nil
	}
	err := unix.Rmdir(l.dir)
	for range removeTries {
		if err != unix.EBUSY {
			break
		}
		_ = write(l.dir, "cgroup.kill", "1")
		time.Sleep(removePause)
		err = unix.Rmdir(l.dir)
	}
	if err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove cgroup %s: %w", l.dir, err)
	}
	return nil
}
