package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/host/event"
)

// flushRetry is how long a flush that failed waits for its next attempt. A deletion, which makes
// room, comes before that.
const flushRetry = 30 * time.Second

// flusher writes hot snapshots to disk, one after another and in the order of their making, so that
// a parent is on disk before what was branched from its children. One that cannot be written is
// tried again and again; the store says so.
type flusher struct {
	store *Store
	done  chan struct{}

	mu     sync.Mutex
	queue  []*entry
	failed []*entry // to be tried again
	ended  bool
	wake   chan struct{} // has room for one
}

func newFlusher(s *Store) *flusher {
	f := &flusher{store: s, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	go f.run()
	return f
}

func (f *flusher) add(e *entry) {
	f.mu.Lock()
	f.queue = append(f.queue, e)
	f.mu.Unlock()
	f.kick()
}

func (f *flusher) kick() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// retry tries what has failed again.
func (f *flusher) retry() {
	f.mu.Lock()
	f.queue, f.failed = append(f.queue, f.failed...), nil
	f.mu.Unlock()
	f.kick()
}

// later remembers a snapshot that could not be flushed.
func (f *flusher) later(e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, e)
	if len(f.failed) == 1 && !f.ended {
		time.AfterFunc(flushRetry, f.retry)
	}
}

// close returns when everything is flushed that can be.
func (f *flusher) close() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.retry()
	<-f.done
}

func (f *flusher) run() {
	defer close(f.done)
	for {
		f.mu.Lock()
		var e *entry
		if len(f.queue) > 0 {
			e, f.queue = f.queue[0], f.queue[1:]
		}
		ended := f.ended
		f.mu.Unlock()
		switch {
		case e != nil:
			f.flush(e)
		case ended:
			return
		default:
			<-f.wake
		}
	}
}

func (f *flusher) flush(e *entry) {
	err := f.store.flush(e)
	s := f.store
	s.mu.Lock()
	e.flushErr = err
	if err == nil && !e.published.IsZero() {
		e.flushTime = time.Since(e.published)
	}
	tag, listed := e.tag, e.listed()
	if err == nil && listed {
		s.tell(event.SnapshotPersisted, e)
	}
	s.mu.Unlock()
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

// WaitFlushed waits until the snapshot tag is on disk. The error says why it is not; it may be
// later.
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
