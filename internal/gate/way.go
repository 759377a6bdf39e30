package gate

import (
	"context"
	"sync"
)

// Way lets work that may wait long give way to urgent work. Its zero value is ready for use, and its
// methods may be called concurrently.
type Way struct {
	mu      sync.Mutex
	urgent  int
	context context.Context // of the work that gives way
	end     context.CancelCauseFunc
}

// Context returns a context for work that gives way. It has ended if there is urgent work.
func (w *Way) Context() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.contextLocked()
}

func (w *Way) contextLocked() context.Context {
	if w.context == nil || w.urgent == 0 && w.context.Err() != nil {
		w.context, w.end = context.WithCancelCause(context.Background())
	}
	return w.context
}

// Clear begins urgent work: it ends the contexts of other work with cause. The caller calls done once.
func (w *Way) Clear(cause error) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.contextLocked()
	w.urgent++
	w.end(cause)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.urgent--
	}
}
