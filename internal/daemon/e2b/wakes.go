package e2b

import (
	"sync"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// wakes holds the requests that wait until their sandboxes are resumed. All requests to one sandbox
// share a place. These requests may have to wait until the sandbox's memory is written. If each of
// them took a place, they would block requests to other sandboxes for that time. Each request also
// holds a connection. So the number of requests is bounded for each sandbox, for the sandboxes of
// one owner, and in total. A third of the places is closed to strangers, so that strangers cannot
// block clients with a token. The requests to one owner's sandboxes, including requests of
// strangers, cannot take all places.
type wakes struct {
	sandboxes *gate.Gate
	requests  *gate.Gate // waiting requests, counted by sandbox and by owner

	mu sync.Mutex
	of map[string]*waking // waiting requests, by sandbox id
}

// waking counts the requests that wait for one sandbox.
type waking struct {
	n     int
	leave func() // frees the sandbox's place
}

func newWakes() *wakes {
	return &wakes{sandboxes: gate.New(maxWakes), requests: gate.New(maxAllWaiting), of: make(map[string]*waking)}
}

// strangersOf returns how many of the given places strangers may take.
func strangersOf(places int) int { return places * 2 / 3 }

// strangers is the prefix of the keys under which the gates count strangers' requests.
const strangers = "strangers "

// enter counts a waiting request to a sandbox of the given owner. The returned function removes the
// request from the count.
func (w *wakes) enter(id, who string, stranger bool) (leave func(), err error) {
	waiting := []gate.Share{{Key: id, Most: maxWaiting}, owner.Share(who, maxOwnWaiting)}
	places := []gate.Share{owner.FairShare(who, maxWakes)}
	if stranger {
		most := strangersOf(maxWakes)
		waiting = append(waiting, gate.Share{Key: strangers + id, Most: strangersOf(maxWaiting)})
		own := owner.Share(who, strangersOf(maxOwnWaiting))
		own.Key = strangers + own.Key
		waiting = append(waiting, own)
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
