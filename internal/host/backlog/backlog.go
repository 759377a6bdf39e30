// Package backlog limits the memory layers that are only in RAM. Such layers cannot be dropped
// before they are on disk, and memory is copied faster than a disk can write. Branches that find no
// room wait in a queue.
//
// A sandbox whose branches build on each other has a line: the memory layers of these branches. The
// sandbox runs from the layers in its line, so they stay in RAM as long as it runs.
//
// The package neither makes layers nor writes them to disk.
package backlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/reserve"
)

// share limits the memory layers of one owner that are only in RAM. Together these layers may take
// at most three times the RAM that is still free. The lines of the owner's sandboxes are included.
// So a single owner can take three quarters of the RAM, and two owners can take three sevenths
// each. Another owner, or a suspension, always finds some room.
const share = 3

// maxWait is how long a branch waits for room in RAM.
const maxWait = 30 * time.Second

// poll is how often a waiting branch checks for room. The branch must poll, because VMMs also free
// RAM, and do not notify the daemon.
const poll = time.Second

// usageAge is how long a count of the RAM usage is reused. Many branches may wait at the same time,
// and counting may have to ask the file system about thousands of layers.
const usageAge = 250 * time.Millisecond

// Layer is a memory layer that is only in RAM and is to be written to disk.
type Layer struct {
	Owner string
	Bytes func() uint64 // RAM that the layer takes; asks the file system
	Err   error         // error of the latest attempt to write the layer to disk
}

// Host is what a Backlog knows of the host. All functions are required. Sizes are in bytes.
type Host struct {
	Unflushed func() []Layer
	Lines     func() map[string]uint64 // RAM of layers that are not to be written, by the owner whose sandboxes need them
	FreeRAM   func() (uint64, error)
	FreeDisk  func() (uint64, error)
	// Cool drops unused copies of layers that are on disk, until this many bytes of RAM are free. It
	// reports whether it has dropped any.
	Cool func(bytes uint64) (freed bool)
}

// Backlog limits the memory layers that are only in RAM. The branch whose owner has the fewest bytes
// in RAM gets room first. Its methods may be called concurrently.
type Backlog struct {
	Host
	Wait time.Duration // how long a branch waits; shorter in tests
	Age  time.Duration // how long a count of the usage is reused; shorter in tests

	mu sync.Mutex
	// sorted by the bytes that the layer's owner has in RAM, fewest first; if they are equal,
	// oldest first
	queue []*room
	taken []*room // layers that have room and are being made

	usage   usage     // see usageLocked
	counted time.Time // when usage was counted; zero: usage must be counted again
	planned bool      // a call of Admit is planned for the time when the count of usage expires
}

// New returns an empty Backlog.
func New(h Host) *Backlog { return &Backlog{Host: h, Wait: maxWait, Age: usageAge} }

// room is room in RAM for one memory layer.
type room struct {
	owner string
	bytes uint64
	in    chan struct{} // closed when the room is assigned
}

// Error reports that there is no room in RAM for the memory of a branch. Earlier branches fill the
// RAM: they are not on disk yet, or sandboxes of the same owner use them. Sizes are in bytes.
type Error struct {
	Need  uint64
	Own   uint64 // layers of the owner that are to be written to disk
	All   uint64 // layers of all owners that are to be written to disk
	Used  uint64 // layers that sandboxes of the owner use as their memory, and that are not to be written to disk
	Flush error  // why flushing fails; nil if it is in progress
}

func (e *Error) Error() string {
	msg := fmt.Sprintf("no room in RAM for %d MiB of memory: branches have %d MiB there that is not on disk yet, %d MiB of it "+
		"from sandboxes of this owner", e.Need>>20, e.All>>20, e.Own>>20)
	if e.Flush != nil {
		return fmt.Sprintf("%s: delete some of them, or mend this: %v", msg, e.Flush)
	}
	if e.Used > 0 {
		return fmt.Sprintf("%s; sandboxes of this owner use %d MiB of earlier branches as their memory; suspend or delete some of "+
			"these sandboxes, or try again when the disk has caught up", msg, e.Used>>20)
	}
	return msg + "; try again when the disk has caught up, or delete some of them"
}

func (e *Error) Unwrap() error { return e.Flush }

// Reserve reserves room for the memory layer of a branch. The layer takes at most the given number
// of bytes. If a layer of this size does not fit at once, and exact is not nil, Reserve calls exact
// for a better estimate. Reserve waits until the disk has caught up with the branches of the owner,
// but no longer than b.Wait. If this time passes, or if writing to the disk fails, the error is an
// *Error. If no other layer is to be written to disk, and sandboxes of the owner have no lines, the
// branch is never refused. The caller calls release when the snapshot is published or abandoned.
func (b *Backlog) Reserve(ctx context.Context, owner string, most uint64, exact func() (uint64, error)) (
	release func(), err error) {
	w := &room{owner: owner, bytes: most, in: make(chan struct{})}
	release = func() { b.leave(w) }
	if b.enter(w) {
		return release, nil
	}
	if exact != nil {
		bytes, err := exact()
		if err != nil {
			return nil, err
		}
		w.bytes = min(most, bytes)
	}
	b.cool((&usage{}).wants(w))
	b.mu.Lock()
	b.queue = append(b.queue, w)
	b.mu.Unlock()
	if err := b.await(ctx, w); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// await waits until w has room. It returns an error if w gets no room. w must be in the queue.
func (b *Backlog) await(ctx context.Context, w *room) error {
	timeout := time.After(b.Wait)
	for {
		if missing := b.Admit(); missing > 0 && b.cool(missing) {
			b.Admit()
		}
		select {
		case <-w.in:
			return nil
		default:
		}
		if err := b.stuck(w); err != nil {
			return err
		}
		select {
		case <-w.in:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout:
			return b.refusal(w, nil)
		case <-time.After(poll):
		}
	}
}

// cool calls Cool. If Cool has dropped a layer, the usage must be counted again.
func (b *Backlog) cool(bytes uint64) (freed bool) {
	if freed = b.Cool(bytes); freed {
		b.mu.Lock()
		b.counted = time.Time{}
		b.mu.Unlock()
	}
	return freed
}

// enter assigns room to w if the queue is empty and there is enough room. It reports whether it has
// assigned the room.
func (b *Backlog) enter(w *room) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if u, _ := b.usageLocked(); len(b.queue) > 0 || u.wants(w) > u.free {
		return false
	}
	b.takeLocked(w)
	return true
}

// takeLocked assigns room to w.
func (b *Backlog) takeLocked(w *room) {
	u := &b.usage
	u.own[w.owner] += w.bytes
	u.all += w.bytes
	u.coming += w.bytes
	u.free -= min(u.free, w.bytes)
	b.taken = append(b.taken, w)
}

// leave removes w from the queue. If w already has room, the room is assigned to other layers in
// the queue.
func (b *Backlog) leave(w *room) {
	is := func(other *room) bool { return other == w }
	b.mu.Lock()
	b.queue, b.taken = slices.DeleteFunc(b.queue, is), slices.DeleteFunc(b.taken, is)
	b.mu.Unlock()
	b.Admit()
}

// Admit assigns room to layers in the queue, in order. It returns how many bytes must be free for
// the first layer that remains, or 0 if the queue is empty. If Admit has used an earlier count of
// the usage, it returns 0. If a layer still waits in this case, Admit plans another call of itself
// for the time when that count expires.
func (b *Backlog) Admit() (missing uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return 0
	}
	u, fresh := b.usageLocked()
	slices.SortStableFunc(b.queue, func(x, y *room) int {
		return cmp.Compare(u.own[x.owner]+x.bytes, u.own[y.owner]+y.bytes)
	})
	for i := 0; i < len(b.queue); {
		w := b.queue[i]
		if want := u.wants(w); want > u.free && (u.all > 0 || u.lines[w.owner] > 0) {
			missing = cmp.Or(missing, want+u.coming)
			if u.all > 0 {
				break
			}
			// A layer of another owner who has no lines may still get room.
			i++
			continue
		}
		b.takeLocked(w)
		b.queue = slices.Delete(b.queue, i, i+1)
		close(w.in)
	}
	if !fresh {
		b.planLocked()
		return 0
	}
	return missing
}

// planLocked plans a call of Admit for the time when the count of the usage expires, if a layer
// waits.
func (b *Backlog) planLocked() {
	if b.planned || len(b.queue) == 0 {
		return
	}
	b.planned = true
	time.AfterFunc(b.Age-time.Since(b.counted), func() {
		b.mu.Lock()
		b.planned = false
		b.mu.Unlock()
		b.Admit()
	})
}

// usage is the RAM usage of layers that are not on disk, and of lines, in bytes.
type usage struct {
	own    map[string]uint64 // bytes by owner, including lines and layers that are being made
	lines  map[string]uint64 // bytes of lines, by owner
	all    uint64            // bytes of all owners
	coming uint64            // bytes reserved for the layers that are being made, for all owners together
	free   uint64            // free bytes in the RAM file system, minus the bytes in coming
}

// wants returns how many bytes must be free for w: the bytes of the layer itself, and the bytes
// that its owner must leave to others.
func (u *usage) wants(w *room) uint64 {
	return w.bytes + (u.own[w.owner]+w.bytes)/share
}

// usageLocked returns the usage, and reports whether this call has counted it. The usage of an
// earlier count may be higher than the present usage, but includes all room that was assigned
// since.
func (b *Backlog) usageLocked() (u *usage, fresh bool) {
	if fresh = time.Since(b.counted) >= b.Age; fresh {
		b.usage = b.countLocked()
		b.counted = time.Now()
	}
	return &b.usage, fresh
}

// countLocked counts the usage.
func (b *Backlog) countLocked() usage {
	u := usage{own: make(map[string]uint64), lines: b.Lines()}
	maps.Copy(u.own, u.lines)
	for _, w := range b.taken {
		u.own[w.owner] += w.bytes
		u.coming += w.bytes
	}
	u.all = u.coming
	for _, l := range b.Unflushed() {
		bytes := l.Bytes()
		u.own[l.Owner] += bytes
		u.all += bytes
	}
	free, err := b.FreeRAM()
	if err != nil {
		free = math.MaxUint64 // free is unknown, so the file system must refuse a layer that does not fit
	}
	u.free = free - min(free, u.coming)
	return u
}

// stuck returns an *Error if waiting does not help: the disk is full, or a flush of the same
// owner's snapshots has failed.
func (b *Backlog) stuck(w *room) error {
	for _, l := range b.Unflushed() {
		full := errors.Is(l.Err, unix.ENOSPC) || errors.Is(l.Err, unix.EDQUOT)
		if l.Err != nil && l.Owner == w.owner || full && b.isDiskFull(w) {
			return b.refusal(w, l.Err)
		}
	}
	return nil
}

// isDiskFull reports whether the disk lacks room for w. Each layer has its own answer: the disk may
// have room for a smaller layer.
func (b *Backlog) isDiskFull(w *room) bool {
	free, err := b.FreeDisk()
	return err != nil || free < w.bytes+reserve.Bytes
}

func (b *Backlog) refusal(w *room, flush error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	u, _ := b.usageLocked()
	return &Error{Need: w.bytes, Own: u.own[w.owner] - u.lines[w.owner], All: u.all, Used: u.lines[w.owner],
		Flush: flush}
}

// Len returns the number of branches that wait for room, and the number of branches that have room.
func (b *Backlog) Len() (waiting, taken int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue), len(b.taken)
}
