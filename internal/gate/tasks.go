package gate

import (
	"context"
	"sync"
)

// Tasks is a set of background tasks, such as tasks started by timers. Only Close waits for them.
// The zero value is ready for use. Methods may be called concurrently.
type Tasks struct {
	mu      sync.Mutex
	context context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

// Context returns the context for tasks. This context ends when Close is called.
func (t *Tasks) Context() context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.contextLocked()
}

func (t *Tasks) contextLocked() context.Context {
	if t.context == nil {
		t.context, t.end = context.WithCancel(context.Background())
	}
	return t.context
}

// Do runs f as a task. After Close, Do does nothing.
func (t *Tasks) Do(f func()) {
	t.mu.Lock()
	if t.contextLocked().Err() != nil {
		t.mu.Unlock()
		return
	}
	t.running.Add(1)
	t.mu.Unlock()
	defer t.running.Done()
	f()
}

// Close ends the context, waits for all tasks, and prevents new tasks.
func (t *Tasks) Close() {
	t.mu.Lock()
	t.contextLocked()
	t.end()
	t.mu.Unlock()
	t.running.Wait()
}
