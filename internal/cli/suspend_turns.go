package cli

import (
	"context"
	"slices"
	"sync"
)

// suspendTurns is the maximum number of concurrent requests to suspend a sandbox.
const suspendTurns = 32

// suspendPlaces bounds the concurrent requests, in total and for each owner of sandboxes. If the
// unfinished sandboxes have n owners, each owner can have one nth of the turns. So if a user gives
// slow sandboxes several owner names, other owners lose only the shares of these names. The
// sandboxes of an owner get their turns in the order in which they asked.
type suspendPlaces struct {
	mu      sync.Mutex
	running map[string]int   // number of requests that run, by owner
	taken   int              // sum of the numbers in running
	left    map[string]int   // number of unfinished sandboxes, by owner
	queue   map[string][]int // numbers of the calls of take that wait, by owner
	calls   int              // number of calls of take so far
	changed chan struct{}    // closed at the next change
}

func newSuspendPlaces() *suspendPlaces {
	return &suspendPlaces{running: make(map[string]int), left: make(map[string]int),
		queue: make(map[string][]int), changed: make(chan struct{})}
}

// expect adds an unfinished sandbox of an owner. It is called for all sandboxes before the first
// turn.
func (t *suspendPlaces) expect(owner string) { t.left[owner]++ }

// take waits for a turn.
func (t *suspendPlaces) take(ctx context.Context, owner string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
	call := t.calls
	t.queue[owner] = append(t.queue[owner], call)
	for t.queue[owner][0] != call || !t.freeLocked(owner) {
		changed := t.changed
		t.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		t.mu.Lock()
		if err != nil {
			t.unqueueLocked(owner, call)
			return err
		}
	}
	t.unqueueLocked(owner, call)
	t.running[owner]++
	t.taken++
	return nil
}

// freeLocked reports whether an owner can have another turn.
func (t *suspendPlaces) freeLocked(owner string) bool {
	share := max(1, suspendTurns/max(1, len(t.left)))
	return t.taken < suspendTurns && t.running[owner] < share
}

func (t *suspendPlaces) unqueueLocked(owner string, call int) {
	t.queue[owner] = slices.DeleteFunc(t.queue[owner], func(n int) bool { return n == call })
	t.changeLocked()
}

// leave ends a turn.
func (t *suspendPlaces) leave(owner string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running[owner]--
	t.taken--
	t.changeLocked()
}

// finish removes an unfinished sandbox of an owner.
func (t *suspendPlaces) finish(owner string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left[owner]--; t.left[owner] <= 0 {
		delete(t.left, owner)
	}
	t.changeLocked()
}

// changeLocked wakes the calls of take.
func (t *suspendPlaces) changeLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}
