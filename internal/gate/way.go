package gate

import (
	"context"
	"sync"
)

// Way lets urgent work interrupt other work. The other work may take long. The zero value is ready
// for use. Methods may be called concurrently.
type Way struct {
	mu      sync.Mutex
	urgent  int
	context context.Context // context of the work that can be interrupted
	end     context.CancelCauseFunc
}

// Context returns a context for work that can be interrupted. The context is cancelled as soon as
// urgent work begins. While there is urgent work, Context returns a cancelled context.
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

// Clear begins urgent work: it cancels the context of other work, with the given cause. The caller
// must call done once, when the urgent work has ended.
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
