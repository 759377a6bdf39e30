// Package idle tracks whether a sandbox is in use, and reports when it has been idle for some time.
//
// The callers decide what counts as use, and what to do with an idle sandbox.
package idle

import (
	"sync"
	"time"

	"github.com/forkd/forkd/internal/gate"
)

// Watch tracks whether a sandbox is in use. It calls idled when the sandbox has been idle for the
// timeout. If the timeout is 0, it never calls idled. The first Touch starts the watch.
type Watch struct {
	timeout time.Duration
	calls   gate.Single // calls of idled

	mu sync.Mutex
	// +checklocks:mu
	busy int // number of current requests
	// +checklocks:mu
	used  time.Time // when the last request ended
	timer *time.Timer
}

// New returns a watch of a sandbox that is not in use. The watch does not call idled again while a
// call of idled runs. So idled must call Touch at its end if the sandbox is still to be watched.
func New(timeout time.Duration, idled func()) *Watch {
	w := &Watch{timeout: timeout}
	if timeout > 0 {
		w.timer = time.AfterFunc(timeout, func() { w.calls.Do(idled) })
		w.timer.Stop()
	}
	return w
}

// Begin counts a request. The caller must call end when the request ends.
func (w *Watch) Begin() (end func()) {
	if w.timeout == 0 {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy++
	w.timer.Stop()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy--
		w.touchLocked()
	}
}

// Touch restarts the idle time.
func (w *Watch) Touch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.touchLocked()
}

// +checklocks:w.mu
func (w *Watch) touchLocked() {
	w.used = time.Now()
	if w.timeout > 0 && w.busy == 0 {
		w.timer.Reset(w.timeout)
	}
}

// Idle reports whether there is no request now and there was no request within the timeout.
func (w *Watch) Idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy == 0 && time.Since(w.used) >= w.timeout
}

// Stop stops the watch until the next Touch.
func (w *Watch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}
