// Package gate limits concurrent work, in total and for each client, so that no client can take all
// places.
//
// A gate has places, and a caller takes one or more of them for its work. Callers may wait in a
// queue. The users of the package decide what a place stands for, which callers belong to the same
// client, and which error a refused caller gets.
package gate

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Share limits the number of places that callers with the same key may have.
type Share struct {
	Key  string
	Most int // maximum number of places at the same time; 0: no limit
}

// Fair returns how many places one client may have. The result leaves a quarter of the places
// (rounded down, but at least one) for other clients. If there is only one place, every client may
// have it.
func Fair(total int) int { return max(1, total-max(1, total/4)) }

// FullError says that a gate, or the share of a key, has no free place.
type FullError struct {
	Limit   int
	Key     string // the key whose share is full; empty: the gate is full
	Waiting bool   // whether the queue is full; Limit is then the bound of the queue
}

func (e *FullError) Error() string {
	if e.Waiting {
		return fmt.Sprintf("%d wait, the most at once", e.Limit)
	}
	if e.Key != "" {
		return fmt.Sprintf("%s has %d, the most that it may have at once", e.Key, e.Limit)
	}
	return fmt.Sprintf("%d are under way, the most at once", e.Limit)
}

// Queue limits the number of waiting callers. One caller of each key may always wait.
type Queue struct {
	Key int // maximum number of waiting callers with the same key; 0: no limit
	All int // maximum number of all waiting callers; 0: no limit
}

// Gate has places for concurrent work. Its methods may be called concurrently.
type Gate struct {
	total int
	bound Queue

	mu    sync.Mutex
	taken int
	by    map[string]int // number of taken places, by key
	queue []*waiter      // in order of arrival
}

// waiter is a caller that waits for a place.
type waiter struct {
	shares []Share
	rank   int           // number of places and waiters with the same key when this waiter arrived
	in     chan struct{} // closed when the waiter has its place
}

func (w *waiter) key() string { return w.shares[0].Key }

// New returns a gate with the given number of places. The number of waiting callers is not limited.
func New(total int) *Gate { return NewQueued(total, Queue{}) }

// NewQueued returns a gate with the given number of places, and with a bound for its queue.
func NewQueued(total int, bound Queue) *Gate {
	return &Gate{total: total, bound: bound, by: make(map[string]int)}
}

// Count returns the number of taken places, and the total number of places.
func (g *Gate) Count() (taken, total int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken, g.total
}

// Waiting returns the number of waiting callers.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue)
}

// Enter takes one place, which counts in all of the shares. If the gate or a share has no free
// place, Enter returns a *FullError without waiting. The caller must call leave once.
func (g *Gate) Enter(shares ...Share) (leave func(), err error) {
	h := g.Hold(shares...)
	if err := h.Add(1); err != nil {
		return nil, err
	}
	return h.Leave, nil
}

// Hold is a set of places that one caller has taken. The places count in all shares of the Hold.
// Only one goroutine at a time may use a Hold.
type Hold struct {
	of     *Gate
	shares []Share
	n      int
}

// Hold returns an empty Hold.
func (g *Gate) Hold(shares ...Share) *Hold { return &Hold{of: g, shares: shares} }

// Add takes n more places. If fewer than n places are free in the gate or in a share, Add takes no
// places and returns a *FullError without waiting.
func (h *Hold) Add(n int) error {
	g := h.of
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.taken+n > g.total {
		return &FullError{Limit: g.total}
	}
	for _, s := range h.shares {
		if !g.hasRoomLocked(n, s) {
			return &FullError{Limit: s.Most, Key: s.Key}
		}
	}
	h.n += n
	g.takeLocked(n, h.shares...)
	return nil
}

// Leave frees all places of the Hold.
func (h *Hold) Leave() {
	h.of.leave(h.n, h.shares...)
	h.n = 0
}

// Wait waits for a place, which counts in all shares. It returns the error of ctx if ctx ends
// before the caller has a place, or a *FullError if too many callers wait. The key of the first
// share identifies the client. Clients with the fewest places and waiters come first, so a client's
// only request does not wait behind many requests of another client. The caller must call leave
// once.
func (g *Gate) Wait(ctx context.Context, first Share, others ...Share) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	w := &waiter{shares: append([]Share{first}, others...), rank: g.by[first.Key], in: make(chan struct{})}
	waiting := 0 // waiting callers with the same key
	for _, other := range g.queue {
		if other.key() == first.Key {
			waiting++
		}
	}
	w.rank += waiting
	g.queue = append(g.queue, w)
	g.admitLocked()
	if full := g.overfullLocked(w, waiting); full != nil {
		g.mu.Unlock()
		return nil, full
	}
	g.mu.Unlock()
	leave = func() { g.leave(1, w.shares...) }
	select {
	case <-w.in:
		return leave, nil
	default:
	}
	select {
	case <-w.in:
		return leave, nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	at := slices.Index(g.queue, w)
	if at >= 0 {
		g.queue = slices.Delete(g.queue, at, at+1)
	}
	g.mu.Unlock()
	if at < 0 { // w has received its place in the meantime
		leave()
	}
	return nil, ctx.Err()
}

// overfullLocked is called after w was added to the queue. If the queue now has too many callers,
// in total or with w's key, it removes w and returns a *FullError. The caller passes the number of
// other waiting callers with w's key (others).
func (g *Gate) overfullLocked(w *waiter, others int) error {
	last := len(g.queue) - 1
	if last < 0 || g.queue[last] != w || others == 0 {
		return nil
	}
	full := &FullError{Waiting: true}
	switch {
	case g.bound.Key > 0 && others >= g.bound.Key:
		full.Limit, full.Key = g.bound.Key, w.key()
	case g.bound.All > 0 && last >= g.bound.All:
		full.Limit = g.bound.All
	default:
		return nil
	}
	g.queue = g.queue[:last]
	return full
}

// hasRoomLocked reports whether n more places fit into all of the shares.
func (g *Gate) hasRoomLocked(n int, shares ...Share) bool {
	return !slices.ContainsFunc(shares, func(s Share) bool { return s.Most != 0 && g.by[s.Key]+n > s.Most })
}

// takeLocked counts n more places in all of the shares.
func (g *Gate) takeLocked(n int, shares ...Share) {
	g.taken += n
	for _, s := range shares {
		if g.by[s.Key] += n; g.by[s.Key] == 0 {
			delete(g.by, s.Key)
		}
	}
}

func (g *Gate) leave(n int, shares ...Share) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.takeLocked(-n, shares...)
	g.admitLocked()
}

// admitLocked gives free places to waiting callers.
func (g *Gate) admitLocked() {
	for g.taken < g.total {
		next := -1
		for i, w := range g.queue {
			if g.hasRoomLocked(1, w.shares...) && (next < 0 || w.rank < g.queue[next].rank) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := g.queue[next]
		g.queue = slices.Delete(g.queue, next, next+1)
		g.takeLocked(1, w.shares...)
		close(w.in)
	}
}
