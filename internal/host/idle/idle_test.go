package idle

import (
	"testing"
	"testing/synctest"
	"time"
)

// A sandbox is idle when the time since its last request has reached its timeout. It is not idle
// during a request.
func TestIdleAfterTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idled := 0
		w := New(time.Minute, func() { idled++ })
		w.Touch()
		time.Sleep(50 * time.Second)
		end := w.Begin()
		time.Sleep(time.Hour)
		if idled != 0 || w.Idle() {
			t.Errorf("idle during a request: %d times", idled)
		}
		end()
		time.Sleep(59 * time.Second)
		if idled != 0 || w.Idle() {
			t.Errorf("idle before its timeout: %d times", idled)
		}
		time.Sleep(2 * time.Second)
		if idled != 1 || !w.Idle() {
			t.Errorf("idle %d times after its timeout, want once", idled)
		}
		w.Touch()
		w.Stop()
		time.Sleep(time.Hour)
		if idled != 1 {
			t.Error("idle while nobody watches")
		}
	})
}

// Without a timeout, a sandbox is never reported as idle.
func TestNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(0, func() { t.Error("idle") })
		w.Touch()
		w.Begin()()
		w.Stop()
		time.Sleep(time.Hour)
	})
}
