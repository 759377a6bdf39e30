package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// flusher writes hot snapshots to disk, one after another and in the order of their making, so that a parent is on disk
// before what was branched from its children.
type flusher struct {
	store *Store
	done  chan struct{}

	mu    sync.Mutex
	queue []*entry
	ended bool
	wake  chan struct{} // has room for one
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

// close returns when everything is flushed.
func (f *flusher) close() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.kick()
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
	e.unflushed = err != nil
	tag, gone := e.tag, e.deleting
	s.mu.Unlock()
	close(e.flushed)
	if err == nil && !gone {
		s.sealer.add(tag)
	}
}

// WaitFlushed waits until the snapshot tag is on disk. The error says why it will not be.
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
