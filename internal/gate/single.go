package gate

import "sync/atomic"

// Single runs a function at most once at a time. The zero value is ready for use.
type Single struct{ runs atomic.Bool }

// Do calls f, or returns at once if another call of Do runs.
func (s *Single) Do(f func()) {
	if s.runs.CompareAndSwap(false, true) {
		defer s.runs.Store(false)
		f()
	}
}
