package e2b

import "sync"

// wakes are the requests that wait for their sandboxes to be brought back. All those to one sandbox
// share a place: they may have to wait until its memory has been written first, and would keep out
// requests to others for as long.
type wakes struct {
	mu sync.Mutex
	of map[string]int // by sandbox
}

func newWakes() *wakes { return &wakes{of: make(map[string]int)} }

// enter counts a request to a sandbox and returns how to end that.
func (w *wakes) enter(id string) (leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.of[id]; n == maxWaiting || n == 0 && len(w.of) == maxWakes {
		return nil, errTooMany
	}
	w.of[id]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.of[id]--; w.of[id] == 0 {
			delete(w.of, id)
		}
	}, nil
}
