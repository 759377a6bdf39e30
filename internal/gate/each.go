package gate

import "sync"

// Each calls f for each item and its index, at most limit calls at a time. It returns when all calls
// have ended.
func Each[T any](limit int, items []T, f func(i int, item T)) {
	places := make(chan struct{}, limit)
	var calls sync.WaitGroup
	for i, item := range items {
		places <- struct{}{}
		calls.Go(func() {
			defer func() { <-places }()
			f(i, item)
		})
	}
	calls.Wait()
}
