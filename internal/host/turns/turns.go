// Package turns calls a function for objects, one after the other. Owners of objects take turns. An
// object for which a sandbox waits is called awaited. A second goroutine handles awaited objects,
// so that they do not wait for others. The package knows nothing about the objects, and forgets its
// queue when the process exits.
package turns

import (
	"slices"
	"sync"
	"time"
)

// Config configures a Queue. All fields are required.
type Config[T any] struct {
	Do      func(T) error  // if it returns an error, the object is tried again later
	After   func()         // called after each Do
	Owner   func(T) string // must not change while the object is in the queue
	Awaited func(T) bool   // must not change; awaited objects have their own goroutine and wait for no other objects
	Retry   time.Duration  // between a failed Do and the next attempt
}

// Queue calls Config.Do for each object in it.
type Queue[T any] struct {
	cfg  Config[T]
	runs sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	queue []T
	// +checklocks:mu
	failed []T // objects that must be tried again
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	turns map[string]uint64 // value of the field turn when the owner last had a turn
	// +checklocks:mu
	turn uint64
	wake *sync.Cond // signaled when queue or ended has changed; uses mu
}

// New returns a Queue. The method Close ends it.
func New[T any](cfg Config[T]) *Queue[T] {
	q := newQueue(cfg)
	for _, awaited := range []bool{false, true} {
		q.runs.Go(func() { q.run(awaited) })
	}
	return q
}

func newQueue[T any](cfg Config[T]) *Queue[T] {
	q := &Queue[T]{cfg: cfg, turns: make(map[string]uint64)}
	q.wake = sync.NewCond(&q.mu)
	return q
}

// Add adds an object.
func (q *Queue[T]) Add(x T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, x)
	q.wake.Broadcast()
}

// Retry moves the failed objects back to the queue.
func (q *Queue[T]) Retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue, q.failed = append(q.queue, q.failed...), nil
	q.wake.Broadcast()
}

// Later schedules another attempt for an object that has failed.
func (q *Queue[T]) Later(x T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.laterLocked(x)
}

// laterLocked is like Later.
//
// +checklocks:q.mu
func (q *Queue[T]) laterLocked(x T) {
	q.failed = append(q.failed, x)
	if len(q.failed) == 1 && !q.ended {
		time.AfterFunc(q.cfg.Retry, q.Retry)
	}
}

// Close waits until the queue is empty. Objects that have failed are tried once more. This includes
// objects whose attempt was in progress when Close was called.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.Retry()
	q.runs.Wait()
}

// run works on the awaited objects, or on all other objects.
func (q *Queue[T]) run(awaited bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		x, ok := q.nextLocked(awaited)
		switch {
		case ok:
			last := q.ended
			q.mu.Unlock()
			if q.cfg.Do(x) != nil {
				q.failedIn(x, last)
			}
			q.cfg.After()
			q.mu.Lock()
		case q.ended:
			return
		default:
			q.wake.Wait()
		}
	}
}

// failedIn schedules another attempt for an object after a failed attempt. If last is true, Close
// was called before the attempt.
func (q *Queue[T]) failedIn(x T, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended && !last {
		q.queue = append(q.queue, x)
		return
	}
	q.laterLocked(x)
}

// nextLocked removes an object from the queue and returns it. It chooses the owner whose latest
// turn was longest ago, and the oldest object of that owner.
//
// +checklocks:q.mu
func (q *Queue[T]) nextLocked(awaited bool) (next T, ok bool) {
	at := -1
	for i, x := range q.queue {
		if q.cfg.Awaited(x) == awaited && (at < 0 || q.turns[q.cfg.Owner(x)] < q.turns[q.cfg.Owner(q.queue[at])]) {
			at = i
		}
	}
	if at < 0 {
		return next, false
	}
	next = q.queue[at]
	q.queue = slices.Delete(q.queue, at, at+1)
	q.turn++
	if q.turns[q.cfg.Owner(next)] = q.turn; len(q.queue) == 0 {
		clear(q.turns)
	}
	return next, true
}
