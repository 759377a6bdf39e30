package sandbox

import (
	"sync"
	"time"
)

// minIdle is the shortest idle timeout: suspending takes a good part of a second on a slow disk.
const minIdle = time.Second

// usage knows whether a sandbox is being used, and calls idled when it has not been for its
// timeout; with the timeout 0 never. It begins to watch with touch.
type usage struct {
	timeout time.Duration

	mu    sync.Mutex
	busy  int       // requests
	used  time.Time // when the last one ended
	timer *time.Timer
}

func newUsage(timeout time.Duration, idled func()) *usage {
	u := &usage{timeout: timeout}
	if timeout > 0 {
		u.timer = time.AfterFunc(timeout, idled)
		u.timer.Stop()
	}
	return u
}

// begin counts a request and returns how to end it.
func (u *usage) begin() (end func()) {
	if u.timeout == 0 {
		return func() {}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy++
	u.timer.Stop()
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.busy--
		u.touchLocked()
	}
}

// touch lets a sandbox's idleness begin now.
func (u *usage) touch() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.touchLocked()
}

func (u *usage) touchLocked() {
	u.used = time.Now()
	if u.timeout > 0 && u.busy == 0 {
		u.timer.Reset(u.timeout)
	}
}

// idle reports whether no request is or has been served for the timeout.
func (u *usage) idle() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.busy == 0 && time.Since(u.used) >= u.timeout
}

// stop ends the watch until the next touch.
func (u *usage) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timer != nil {
		u.timer.Stop()
	}
}
