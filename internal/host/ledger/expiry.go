package ledger

import (
	"time"

	"github.com/forkd/forkd/internal/host/invalid"
)

// MinIdle is the minimum idle timeout, because suspending takes most of a second on a slow disk.
const MinIdle = time.Second

// CheckTimes checks the lifetime and the idle timeout in a request for a fork. If one of them is 0, it
// has no effect.
func CheckTimes(ttl, idle time.Duration) error {
	switch {
	case ttl < 0:
		return &invalid.Error{Field: "ttl_secs", Reason: "negative"}
	case idle != 0 && idle < MinIdle:
		return invalid.Errorf("idle_timeout_secs", "%g: want 0, or at least %g", idle.Seconds(), MinIdle.Seconds())
	}
	return nil
}

// Expiry says when a sandbox expires and what happens then.
type Expiry struct {
	At       time.Time // zero: never
	Suspends bool      // whether the sandbox is then suspended; if false, it is deleted, whatever its state is
}

// After returns a copy of e in which the time At is later by d.
func (e Expiry) After(d time.Duration) Expiry {
	if !e.At.IsZero() {
		e.At = e.At.Add(d)
	}
	return e
}

// Write writes e to a record.
func (e Expiry) Write(r *Record) { r.Expires, r.ExpirySuspends = e.At.UTC(), e.Suspends }
