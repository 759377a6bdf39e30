package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/forkd/forkd/internal/host/reserve"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// backlogTimes limits the memory layers of one owner that are only in RAM. Together these layers
// may take at most backlogTimes times the bytes of RAM that are still free. The layers in the lines
// of the owner's sandboxes are included. So a single owner can take three quarters of the RAM, and
// two owners three sevenths each. Another owner, or a suspension, always finds some room.
const backlogTimes = 3

// backlogWait is how long a branch waits for room in RAM.
const backlogWait = 30 * time.Second

// backlogPoll is how often a waiting branch checks for room. The branch must poll, because VMMs
// also free RAM, and do not notify the store.
const backlogPoll = time.Second

// usageAge is how long a backlogUsage is reused. Many branches may wait at the same time, and
// counting may have to ask the file system about thousands of layers.
const usageAge = 250 * time.Millisecond

// backlog limits the memory layers that are only in RAM. Such layers cannot be dropped before they
// are on disk, and memory is copied faster than a disk can write. Branches that find no room wait
// in a queue. The branch whose owner has the fewest bytes in RAM comes first.
type backlog struct {
	store *Store
	wait  time.Duration // backlogWait, except in tests
	age   time.Duration // usageAge, except in tests

	diskRoom func() (uint64, error) // Store.Room, except in tests

	mu sync.Mutex
	// sorted by the bytes that the layer's owner has in RAM, fewest first; if they are equal,
	// oldest first
	queue []*layerRoom
	taken []*layerRoom // layers that have room and are being made

	usage   backlogUsage // see usageLocked
	counted time.Time    // when usage was counted; zero: usage must be counted again
	planned bool         // a call of admit is planned for the time when the count of usage expires
}

// layerRoom is room in RAM for one memory layer.
type layerRoom struct {
	owner string
	bytes uint64
	in    chan struct{} // closed when the room is assigned
}

// BacklogError reports that there is no room in RAM for the memory of a branch. Earlier branches
// are not on disk yet, or sandboxes of the owner use them. Sizes are in bytes.
type BacklogError struct {
	Need  uint64
	Own   uint64 // layers of the owner that are to be written to disk
	All   uint64 // layers of all owners that are to be written to disk
	Used  uint64 // layers that sandboxes of the owner use as their memory, and that are not to be written to disk
	Flush error  // why flushing fails; nil if it is in progress
}

func (e *BacklogError) Error() string {
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

func (e *BacklogError) Unwrap() error { return e.Flush }

// ReserveRAM reserves room for the memory layer of a branch, which may have up to the given number
// of bytes. ReserveRAM is not called if Staging.Awaited is called for the branch. If a layer of
// this size does not fit at once, and exact is not nil, ReserveRAM calls exact for a better
// estimate. ReserveRAM waits until the disk has caught up with the branches of the owner, but no
// longer than a client can wait. After that, or if the disk cannot be written, the error is a
// *BacklogError. If no other layer is to be written to disk, and sandboxes of the owner have no
// lines, the branch is never refused. The caller calls release when the snapshot is published or
// abandoned.
func (s *Store) ReserveRAM(ctx context.Context, owner string, most uint64, exact func() (uint64, error)) (
	release func(), err error) {
	b := &s.backlog
	w := &layerRoom{owner: owner, bytes: most, in: make(chan struct{})}
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
	b.coolUntil((&backlogUsage{}).wants(w))
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
func (b *backlog) await(ctx context.Context, w *layerRoom) error {
	timeout := time.After(b.wait)
	for {
		if missing := b.admit(); missing > 0 && b.coolUntil(missing) {
			b.admit()
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
		case <-time.After(backlogPoll):
		}
	}
}

// coolUntil calls Store.coolUntil. If Store.coolUntil has dropped a layer, the usage must be
// counted again.
func (b *backlog) coolUntil(bytes uint64) (freed bool) {
	if freed = b.store.coolUntil(bytes); freed {
		b.mu.Lock()
		b.counted = time.Time{}
		b.mu.Unlock()
	}
	return freed
}

// enter assigns room to w if the queue is empty and there is enough room. It reports whether it has
// assigned the room.
func (b *backlog) enter(w *layerRoom) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if u, _ := b.usageLocked(); len(b.queue) > 0 || u.wants(w) > u.free {
		return false
	}
	b.takeLocked(w)
	return true
}

// takeLocked assigns room to w.
func (b *backlog) takeLocked(w *layerRoom) {
	u := &b.usage
	u.own[w.owner] += w.bytes
	u.all += w.bytes
	u.coming += w.bytes
	u.free -= min(u.free, w.bytes)
	b.taken = append(b.taken, w)
}

// leave removes w from the queue. If w already has room, the room is assigned to other layers in
// the queue.
func (b *backlog) leave(w *layerRoom) {
	is := func(other *layerRoom) bool { return other == w }
	b.mu.Lock()
	b.queue, b.taken = slices.DeleteFunc(b.queue, is), slices.DeleteFunc(b.taken, is)
	b.mu.Unlock()
	b.admit()
}

// admit assigns room to layers in the queue, in order. It returns how many bytes must be free for
// the first layer that remains, or 0 if the queue is empty. If admit has used an earlier count of
// the usage, it returns 0 and, if a layer still waits, plans another call of itself for the time when
// that count expires.
func (b *backlog) admit() (missing uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return 0
	}
	u, fresh := b.usageLocked()
	slices.SortStableFunc(b.queue, func(x, y *layerRoom) int {
		return cmp.Compare(u.own[x.owner]+x.bytes, u.own[y.owner]+y.bytes)
	})
	for i := 0; i < len(b.queue); {
		w := b.queue[i]
		if want := u.wants(w); want > u.free && (u.all > 0 || u.lines[w.owner] > 0) {
			missing = cmp.Or(missing, want+u.coming)
			if u.all > 0 {
				break
			}
			// A layer of another owner, without lines, may get room.
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

// planLocked plans a call of admit for the time when the count of the usage expires, if a layer
// waits.
func (b *backlog) planLocked() {
	if b.planned || len(b.queue) == 0 {
		return
	}
	b.planned = true
	time.AfterFunc(b.age-time.Since(b.counted), func() {
		b.mu.Lock()
		b.planned = false
		b.mu.Unlock()
		b.admit()
	})
}

// backlogUsage is the RAM usage of layers that are not on disk, and of lines, in bytes.
type backlogUsage struct {
	own    map[string]uint64 // bytes by owner, including lines and layers that are being made
	lines  map[string]uint64 // bytes of lines, by owner
	all    uint64            // bytes of all owners
	coming uint64            // bytes reserved for the layers that are being made, for all owners together
	free   uint64            // free bytes in the RAM file system, minus coming
}

// wants returns how many bytes must be free for w: the bytes of the layer itself, and the bytes
// that its owner must leave to others.
func (u *backlogUsage) wants(w *layerRoom) uint64 {
	return w.bytes + (u.own[w.owner]+w.bytes)/backlogTimes
}

// usageLocked returns the usage, and reports whether this call has counted it. The usage of an
// earlier count may be higher than the present usage, but includes all room that was assigned
// since.
func (b *backlog) usageLocked() (u *backlogUsage, fresh bool) {
	if fresh = time.Since(b.counted) >= b.age; fresh {
		b.usage = b.countLocked()
		b.counted = time.Now()
	}
	return &b.usage, fresh
}

// countLocked counts the usage.
func (b *backlog) countLocked() backlogUsage {
	u := backlogUsage{own: make(map[string]uint64), lines: b.store.lines()}
	maps.Copy(u.own, u.lines)
	for _, w := range b.taken {
		u.own[w.owner] += w.bytes
		u.coming += w.bytes
	}
	u.all = u.coming
	for _, l := range b.store.unflushed() {
		bytes := b.store.ramBytes(l.id)
		u.own[l.owner] += bytes
		u.all += bytes
	}
	free, _, err := b.store.ramRoom()
	if err != nil {
		free = math.MaxUint64 // free is unknown, so the file system must refuse a layer that does not fit
	}
	u.free = free - min(free, u.coming)
	return u
}

// stuck returns a *BacklogError if waiting does not help, because the disk is full or a flush of
// the same owner's snapshots has failed.
func (b *backlog) stuck(w *layerRoom) error {
	for _, l := range b.store.unflushed() {
		full := errors.Is(l.err, unix.ENOSPC) || errors.Is(l.err, unix.EDQUOT)
		if l.err != nil && l.owner == w.owner || full && b.isDiskFull(w) {
			return b.refusal(w, l.err)
		}
	}
	return nil
}

// isDiskFull reports whether the disk lacks room for w. If a layer of another owner does not fit on
// the disk, a smaller layer may still fit.
func (b *backlog) isDiskFull(w *layerRoom) bool {
	room, err := b.diskRoom()
	return err != nil || room < w.bytes+reserve.Bytes
}

func (b *backlog) refusal(w *layerRoom, flush error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	u, _ := b.usageLocked()
	return &BacklogError{Need: w.bytes, Own: u.own[w.owner] - u.lines[w.owner], All: u.all, Used: u.lines[w.owner],
		Flush: flush}
}

// unflushedLayer is a memory layer that is only in RAM and is to be written to disk.
type unflushedLayer struct {
	id    string
	owner string
	err   error // error of the latest attempt to write the layer to disk
}

// ramBytes returns the RAM usage of a memory layer.
func (s *Store) ramBytes(id string) uint64 { return blocks(s.ramLayer(id)) }

// unflushed returns the layers that are to be written to disk. Layers of unnamed snapshots may also
// be only in RAM, but are never written to disk. They count as layers of lines.
func (s *Store) unflushed() []unflushedLayer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []unflushedLayer
	for _, e := range s.byTag {
		if e.AwaitsFlush() && e.manifest != nil {
			list = append(list, unflushedLayer{e.manifest.ID, e.owner, e.flushErr})
		}
	}
	return list
}
