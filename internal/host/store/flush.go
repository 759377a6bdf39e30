package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/host/event"
)

// flushRetry is the time between a failed flush and the next attempt. A deletion frees space, so it
// causes an earlier attempt.
const flushRetry = 30 * time.Second

// flusher writes hot snapshots, which are only in RAM, to disk. Owners take turns. The oldest
// snapshot of an owner is first, so a parent is usually on disk before branches of its children. A
// branch that is written before its parent has its own copies of the parent's layers for some time.
// A flush that fails is logged and tried again.
//
// A separate goroutine flushes snapshots that a stopped sandbox waits for, so that they do not wait
// behind other snapshots.
type flusher struct {
	store *Store
	runs  sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	queue []*entry
	// +checklocks:mu
	failed []*entry // snapshots whose flush failed and must be tried again
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	turns map[string]uint64 // value of turn when the owner last had a turn
	// +checklocks:mu
	turn uint64
	wake *sync.Cond // signaled when queue or ended has changed; uses mu
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

// retry moves the failed snapshots back to the queue.
func (f *flusher) retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue, f.failed = append(f.queue, f.failed...), nil
	f.wake.Broadcast()
}

// later records that the flush of a snapshot failed and must be tried again.
func (f *flusher) later(e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, e)
	if len(f.failed) == 1 && !f.ended {
		time.AfterFunc(flushRetry, f.retry)
	}
}

// close waits until all snapshots are flushed, except snapshots whose flush fails.
func (f *flusher) close() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.retry()
	f.runs.Wait()
}

// run flushes snapshots. If awaited is set, run flushes only snapshots that stopped sandboxes wait
// for. Otherwise run flushes only the other snapshots.
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
			f.store.backlog.Admit()
			f.mu.Lock()
		case f.ended:
			return
		default:
			f.wake.Wait()
		}
	}
}

// nextLocked removes a snapshot from the queue and returns it. It chooses the owner whose latest
// turn is the longest ago, and the oldest snapshot of that owner.
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
	// If the snapshot was deleted and is still in RAM, keep its functions in hurries, because later
	// snapshots of its followers need them.
	if err == nil && !e.InRAM() {
		e.hurries = nil
	}
	ended := append(e.calm, calm)
	e.calm = nil
	if err == nil && !e.published.IsZero() {
		e.flushTime = time.Since(e.published)
	}
	tag, listed := e.tag, e.Listed()
	if err == nil && listed {
		s.tell(event.SnapshotPersisted, e)
	}
	s.mu.Unlock()
	for _, end := range ended {
		end()
	}
	select {
	case <-e.flushed: // an earlier attempt has ended
	default:
		close(e.flushed)
	}
	switch {
	case err != nil:
		f.later(e)
	case listed:
		s.sealer.Add(tag)
	}
}

// WaitFlushed waits until the snapshot with the given tag is on disk. An error says why the
// snapshot is not on disk; a later attempt may succeed.
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
