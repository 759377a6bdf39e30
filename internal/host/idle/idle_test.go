package idle

import (
	"testing"
	"testing/synctest"
	"time"
)

// A sandbox is idle if no request was served for its timeout; during a request it is not idle.
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

// A sandbox without a timeout is never reported as idle.
func TestNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(0, func() { t.Error("idle") })
		w.Touch()
		w.Begin()()
		w.Stop()
		time.Sleep(time.Hour)
	})
}
