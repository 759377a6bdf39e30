// Package gate bounds how much of something is under way at once: in all, and for each of those who
// ask for it, so that one of them cannot keep the others out.
//
// It counts and queues. What is counted, who asks, and what a refused caller is told is for its users
// to say.
package gate

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Share is the part of a gate's places that one key may have.
type Share struct {
	Key  string
	Most int // places at once; 0: as many as the gate has
}

// Fair returns how many of a gate's places one client may have so that others find some: three
// quarters of them, or all but one. The only place is anyone's.
func Fair(total int) int { return max(1, total-max(1, total/4)) }

// FullError says that a gate, or the share of a key in it, has no place.
type FullError struct {
	Limit int
	Key   string // whose share has none; empty: the gate
}

func (e *FullError) Error() string {
	if e.Key != "" {
		return fmt.Sprintf("%s has %d, the most that it may have at once", e.Key, e.Limit)
	}
	return fmt.Sprintf("%d are under way, the most at once", e.Limit)
}

// Gate has places for what is under way. Its methods may be called concurrently.
type Gate struct {
	total int

	mu    sync.Mutex
	taken int
	by    map[string]int // of these, by key
	queue []*waiter      // in the order in which they came
}

// waiter waits for a place.
type waiter struct {
	share Share
	rank  int           // how many of its key had a place or waited when it came
	in    chan struct{} // closed when it has its place
}

// New returns a gate with so many places.
func New(total int) *Gate { return &Gate{total: total, by: make(map[string]int)} }

// Count returns how many places are taken, and how many there are.
func (g *Gate) Count() (taken, total int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken, g.total
}

// Enter takes a place that counts in all shares, or returns a *FullError. It does not wait. The
// caller calls leave once.
func (g *Gate) Enter(shares ...Share) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.taken >= g.total {
		return nil, &FullError{Limit: g.total}
	}
	for _, s := range shares {
		if !g.hasRoomLocked(s) {
			return nil, &FullError{Limit: s.Most, Key: s.Key}
		}
	}
	return g.takeLocked(shares...), nil
}

// Wait takes a place, for which it waits as long as ctx lasts; its error is that of ctx. Those whose
// key has the fewest before them come first: a caller that asks for one thing does not wait behind
// all that another has asked for. The caller calls leave once.
func (g *Gate) Wait(ctx context.Context, s Share) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	w := &waiter{share: s, rank: g.by[s.Key], in: make(chan struct{})}
	for _, other := range g.queue {
		if other.share.Key == s.Key {
			w.rank++
		}
	}
	g.queue = append(g.queue, w)
	g.admitLocked()
	g.mu.Unlock()
	leave = func() { g.leave(s) }
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
	if at < 0 { // it got its place just now
		leave()
	}
	return nil, ctx.Err()
}

func (g *Gate) hasRoomLocked(s Share) bool { return s.Most == 0 || g.by[s.Key] < s.Most }

func (g *Gate) takeLocked(shares ...Share) (leave func()) {
	g.taken++
	for _, s := range shares {
		g.by[s.Key]++
	}
	return func() { g.leave(shares...) }
}

func (g *Gate) leave(shares ...Share) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken--
	for _, s := range shares {
		if g.by[s.Key]--; g.by[s.Key] == 0 {
			delete(g.by, s.Key)
		}
	}
	g.admitLocked()
}

// admitLocked gives free places to those who wait.
func (g *Gate) admitLocked() {
	for g.taken < g.total {
		next := -1
		for i, w := range g.queue {
			if g.hasRoomLocked(w.share) && (next < 0 || w.rank < g.queue[next].rank) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := g.queue[next]
		g.queue = slices.Delete(g.queue, next, next+1)
		g.takeLocked(w.share)
		close(w.in)
	}
}
