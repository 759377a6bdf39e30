package gate

import (
	"context"
	"sync"
)

// Tasks is work that no caller waits for until Close, such as that of timers. Its zero value is
// ready for use, and its methods may be called concurrently.
type Tasks struct {
	mu      sync.Mutex
	context context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

// Context returns a context that ends when Close is called.
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

// Do calls f, unless Close was called.
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

// Close waits until all work is done, and prevents more.
func (t *Tasks) Close() {
	t.mu.Lock()
	t.contextLocked()
	t.end()
	t.mu.Unlock()
	t.running.Wait()
}
