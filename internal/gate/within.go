package gate

import "time"

// Within calls functions one after the other, and reports whether all have returned within the time
// limit. If not, the calls go on in the background.
func Within(limit time.Duration, calls ...func()) bool {
	ended := make(chan struct{})
	go func() {
		for _, call := range calls {
			call()
		}
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(limit):
		return false
	}
}
