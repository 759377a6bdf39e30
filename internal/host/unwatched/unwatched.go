// Package unwatched is for branches that complete in the background, without a client that waits
// for them. Other requests, such as forks, can wait for such a branch here. The package neither
// makes branches nor keeps their outcome.
package unwatched

import (
	"context"
	"sync"
	"time"
)

// Patience is how long a fork waits for a branch that no client watches. It is below one minute,
// the timeout of published clients of forkd 0.5.
const Patience = 45 * time.Second

// Branches is the set of unfinished branches.
type Branches struct {
	Patience time.Duration // the constant Patience, except in tests

	mu sync.Mutex
	// +checklocks:mu
	done map[string]chan struct{} // channels by tag; each is closed when its branch is complete
}

// New returns an empty set.
func New() *Branches {
	return &Branches{Patience: Patience, done: make(map[string]chan struct{})}
}

// Add adds a branch. The caller must call complete once, when the branch is complete or has failed.
func (b *Branches) Add(tag string) (complete func()) {
	done := make(chan struct{})
	b.mu.Lock()
	b.done[tag] = done
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		if b.done[tag] == done { // if not, another branch has taken the tag after this one failed
			delete(b.done, tag)
		}
		b.mu.Unlock()
		close(done)
	}
}

// Wait waits until the branch with the given tag is complete, if there is such a branch. If that
// takes too long, Wait returns nil, and the store then reports that the branch is still being made.
func (b *Branches) Wait(ctx context.Context, tag string) error {
	b.mu.Lock()
	done := b.done[tag]
	b.mu.Unlock()
	if done == nil {
		return nil
	}
	limit := time.NewTimer(b.Patience)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
