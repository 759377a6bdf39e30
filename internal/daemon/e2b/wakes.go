package e2b

import "sync"

// wakes are the requests that wait for their sandboxes to be brought back. All those to one sandbox
// share a place: they may have to wait until its memory has been written first, and would keep out
// requests to others for as long. A third of the places is not for strangers, so that they keep out
// nobody who has a token.
type wakes struct {
	mu sync.Mutex
	of map[string]int // by sandbox
}

func newWakes() *wakes { return &wakes{of: make(map[string]int)} }

// strangersOf returns how many of so many places strangers may have.
func strangersOf(places int) int { return places * 2 / 3 }

// enter counts a request to a sandbox and returns how to end that.
func (w *wakes) enter(id string, stranger bool) (leave func(), err error) {
	waiting, sandboxes := maxWaiting, maxWakes
	if stranger {
		waiting, sandboxes = strangersOf(waiting), strangersOf(sandboxes)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.of[id]; n >= waiting || n == 0 && len(w.of) >= sandboxes {
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
