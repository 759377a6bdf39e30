package e2b

import (
	"sync"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// wakes are the requests that wait for their sandboxes to be brought back. All those to one sandbox
// share a place: they may have to wait until its memory has been written first, and would keep out
// requests to others for as long. A third of the places is not for strangers, so that they keep out
// nobody who has a token. No owner of sandboxes has all places either, nor all that strangers have.
type wakes struct {
	sandboxes *gate.Gate
	requests  *gate.Gate // by sandbox; there are no more than connections

	mu sync.Mutex
	of map[string]*waking // by sandbox
}

// waking are the requests that wait for one sandbox.
type waking struct {
	n     int
	leave func() // gives back its place
}

func newWakes() *wakes {
	return &wakes{sandboxes: gate.New(maxWakes), requests: gate.New(maxWakes * maxWaiting), of: make(map[string]*waking)}
}

// strangersOf returns how many of so many places strangers may have.
func strangersOf(places int) int { return places * 2 / 3 }

// strangers begins the keys of the shares of all strangers.
const strangers = "strangers "

// enter counts a request to a sandbox of an owner and returns how to end that.
func (w *wakes) enter(id, who string, stranger bool) (leave func(), err error) {
	waiting := []gate.Share{{Key: id, Most: maxWaiting}}
	places := []gate.Share{owner.FairShare(who, maxWakes)}
	if stranger {
		most := strangersOf(maxWakes)
		waiting = append(waiting, gate.Share{Key: strangers + id, Most: strangersOf(maxWaiting)})
		places = append(places, gate.Share{Key: strangers, Most: most}, face.StrangersShare(who, most))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	stop, err := w.requests.Enter(waiting...)
	if err != nil {
		return nil, face.ErrTooMany
	}
	at := w.of[id]
	if at == nil {
		place, err := w.sandboxes.Enter(places...)
		if err != nil {
			stop()
			return nil, face.ErrTooMany
		}
		at = &waking{leave: place}
		w.of[id] = at
	}
	at.n++
	return func() {
		stop()
		w.mu.Lock()
		defer w.mu.Unlock()
		if at.n--; at.n == 0 {
			at.leave()
			delete(w.of, id)
		}
	}, nil
}
