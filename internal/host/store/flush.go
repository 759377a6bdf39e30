package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/host/event"
)

// flushRetry is the time until a failed flush is tried again. A deletion, which frees space,
// triggers it earlier.
const flushRetry = 30 * time.Second

// flusher writes hot snapshots to disk. Snapshots that a stopped sandbox waits for are written
// concurrently with the others, by a goroutine of their own. Owners take turns. Each owner's oldest
// snapshot comes first, so that a parent is usually on disk before branches of its children.
// Branches that are written before the parent have copies of its layers for a while. Failed flushes
// are repeated and logged.
type flusher struct {
	store *Store
	runs  sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	queue []*entry
	// +checklocks:mu
	failed []*entry // to be tried again
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	turns map[string]uint64 // counter of each owner's last turn
	// +checklocks:mu
	turn uint64
	wake *sync.Cond // of mu: signals that queue or ended has changed
}

func newFlusher(s *Store) *flusher {
	f := &flusher{store: s, turns: make(map[string]uint64)}
	f.wake = sync.NewCond(&f.mu)
	for _, awaited := range []bool{false, true} {
		f.runs.Go(func() { f.run(awaited) })
	}
	return f
}

func (f *flusher) add(e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = append(f.queue, e)
	f.wake.Broadcast()
}

// retry queues the failed snapshots again.
func (f *flusher) retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue, f.failed = append(f.queue, f.failed...), nil
	f.wake.Broadcast()
}

// later keeps a snapshot whose flush failed, to be tried again.
func (f *flusher) later(e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, e)
	if len(f.failed) == 1 && !f.ended {
		time.AfterFunc(flushRetry, f.retry)
	}
}

// close returns when all snapshots are flushed, except those that cannot be.
func (f *flusher) close() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.retry()
	f.runs.Wait()
}

// run flushes the snapshots that stopped sandboxes wait for, or the others.
func (f *flusher) run(awaited bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		e := f.nextLocked(awaited)
		switch {
		case e != nil:
			f.mu.Unlock()
			f.flush(e)
			f.store.coolUnused()
			f.store.backlog.admit()
			f.mu.Lock()
		case f.ended:
			return
		default:
			f.wake.Wait()
		}
	}
}

// nextLocked removes a snapshot from the queue: the oldest one of the owner whose last turn is
// longest ago.
//
// +checklocks:f.mu
func (f *flusher) nextLocked(awaited bool) *entry {
	at := -1
	for i, e := range f.queue {
		if e.awaited == awaited && (at < 0 || f.turns[e.owner] < f.turns[f.queue[at].owner]) {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	e := f.queue[at]
	f.queue = slices.Delete(f.queue, at, at+1)
	f.turn++
	if f.turns[e.owner] = f.turn; len(f.queue) == 0 {
		clear(f.turns)
	}
	return e
}

func (f *flusher) flush(e *entry) {
	s := f.store
	s.mu.Lock()
	hurries := e.hurries
	s.mu.Unlock()
	calm := liftAll(hurries)
	err := s.flush(e)
	s.mu.Lock()
	e.flushErr = err
	if err == nil {
		e.hurries = nil
	}
	ended := append(e.calm, calm)
	e.calm = nil
	if err == nil && !e.published.IsZero() {
		e.flushTime = time.Since(e.published)
	}
	tag, listed := e.tag, e.listed()
	if err == nil && listed {
		s.tell(event.SnapshotPersisted, e)
	}
	s.mu.Unlock()
	for _, end := range ended {
		end()
	}
	select {
	case <-e.flushed: // by an earlier attempt
	default:
		close(e.flushed)
	}
	switch {
	case err != nil:
		f.later(e)
	case listed:
		s.sealer.add(tag)
	}
}

// WaitFlushed waits until the snapshot tag is on disk. An error says why it is not yet; a later
// attempt may succeed.
func (s *Store) WaitFlushed(ctx context.Context, tag string) error {
	s.mu.Lock()
	e := s.byTag[tag]
	s.mu.Unlock()
	if e == nil {
		return &NotFoundError{Tag: tag}
	}
	if e.flushed != nil {
		select {
		case <-e.flushed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.flushErr != nil {
		return fmt.Errorf("flush snapshot %q to disk: %w", tag, e.flushErr)
	}
	return nil
}
