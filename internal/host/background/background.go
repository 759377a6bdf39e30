// Package background calls a function for named objects, one after the other, at the lowest priority
// of the CPU. It keeps no results, and forgets its queue when the process exits.
package background

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Queue calls a function for each object in it.
type Queue struct {
	do     func(ctx context.Context, name string)
	cancel context.CancelFunc
	done   chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	queue []string
	// +checklocks:mu
	name string // the object that is worked on; may be empty
	// +checklocks:mu
	stop context.CancelFunc // cancels the work for name
	wake chan struct{}      // has a buffer of one value
}

// New returns a Queue that calls do. The context of a call ends when its object is dropped, or the
// Queue is closed.
func New(do func(ctx context.Context, name string)) *Queue {
	ctx, cancel := context.WithCancel(context.Background())
	q := &Queue{do: do, cancel: cancel, done: make(chan struct{}), stop: func() {}, wake: make(chan struct{}, 1)}
	go q.run(ctx)
	return q
}

// Add adds an object.
func (q *Queue) Add(name string) {
	q.mu.Lock()
	q.queue = append(q.queue, name)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next removes an object from the queue, and returns it with the context for its work. If the queue
// is empty, next returns "".
func (q *Queue) next(ctx context.Context) (context.Context, string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stop()
	q.name = ""
	if len(q.queue) > 0 {
		q.name, q.queue = q.queue[0], q.queue[1:]
	}
	ctx, q.stop = context.WithCancel(ctx)
	return ctx, q.name
}

// Drop removes an object, and cancels the work for it.
func (q *Queue) Drop(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.name == name {
		q.stop()
	}
	q.queue = slices.DeleteFunc(q.queue, func(queued string) bool { return queued == name })
}

// Close cancels all work, and waits for its end.
func (q *Queue) Close() {
	q.cancel()
	<-q.done
}

func (q *Queue) run(ctx context.Context) {
	defer close(q.done)
	AtLowestPriority()
	for {
		if working, name := q.next(ctx); name != "" {
			q.do(working, name)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
	}
}

// lowestNice is the nice value of the lowest priority (setpriority(2)).
const lowestNice = 19

// AtLowestPriority gives the calling goroutine's thread the lowest priority. It must be called at
// the beginning of the goroutine. It locks the goroutine to the thread and never unlocks it. So the
// thread ends with the goroutine and is not reused.
func AtLowestPriority() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowestNice)
}
