package store

import (
	"context"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/turns"
)

// flushRetry is the time between a failed flush and the next attempt. A deletion frees space, so it
// causes an earlier attempt.
const flushRetry = 30 * time.Second

// newFlusher returns the queue that writes hot snapshots to disk. Hot snapshots are only in RAM.
// The oldest snapshot of an owner is first, so a parent is usually on disk before branches of its
// children. A branch that is written before its parent must copy the parent's layers, because it
// cannot link to them yet. A flush that fails is tried again. If a stopped sandbox waits for a
// snapshot, that snapshot does not wait behind other snapshots.
func newFlusher(s *Store) *turns.Queue[*entry] {
	return turns.New(turns.Config[*entry]{
		Do:      s.tryFlush,
		After:   func() { s.coolUnused(); s.backlog.Admit() },
		Owner:   func(e *entry) string { return e.owner },
		Awaited: func(e *entry) bool { return e.awaited },
		Retry:   flushRetry,
	})
}

// flushNow flushes a snapshot, unless its deletion has begun. After an error, a later attempt follows.
func (s *Store) flushNow(e *entry) {
	if s.tryFlush(e) != nil {
		s.flusher.Later(e)
	}
}

// tryFlush is like flushNow, and leaves a later attempt to the caller.
func (s *Store) tryFlush(e *entry) error {
	s.mu.Lock()
	hurries := e.hurries
	s.mu.Unlock()
	calm := liftAll(hurries)
	err := s.flush(e)
	s.mu.Lock()
	e.flushErr = err
	// If the snapshot was deleted and is still in RAM, keep the functions in e.hurries, because
	// later snapshots of its followers need them.
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
	if err == nil && listed {
		s.sealer.Add(tag)
	}
	return err
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
