// Package idle knows whether a sandbox is being used, and tells when it has not been for a while.
//
// What counts as use, and what is done with an idle sandbox, is for its users to say.
package idle

import (
	"sync"
	"time"
)

// Watch knows whether a sandbox is being used, and calls idled when it has not been for its
// timeout; with the timeout 0 never. It begins to watch with Touch.
type Watch struct {
	timeout time.Duration

	mu    sync.Mutex
	busy  int       // requests
	used  time.Time // when the last one ended
	timer *time.Timer
}

// New returns a watch over a sandbox that nothing uses yet.
func New(timeout time.Duration, idled func()) *Watch {
	w := &Watch{timeout: timeout}
	if timeout > 0 {
		w.timer = time.AfterFunc(timeout, idled)
		w.timer.Stop()
	}
	return w
}

// Begin counts a request and returns how to end it.
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

// Touch lets a sandbox's idleness begin now.
func (w *Watch) Touch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.touchLocked()
}

func (w *Watch) touchLocked() {
	w.used = time.Now()
	if w.timeout > 0 && w.busy == 0 {
		w.timer.Reset(w.timeout)
	}
}

// Idle reports whether no request is or has been served for the timeout.
func (w *Watch) Idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy == 0 && time.Since(w.used) >= w.timeout
}

// Stop ends the watch until the next Touch.
func (w *Watch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}
