package ledger

import "time"

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
