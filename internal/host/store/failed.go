package store

import (
	"time"

	"github.com/forkd/forkd/internal/host/event"
)

// ListFailed lists tag, a branch that nobody waited for or that is lost, as failed with the reason,
// until it is deleted, made again, or the daemon ends.
func (s *Store) ListFailed(tag string, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTag[tag] == nil && s.reserved[tag] == nil {
		s.byTag[tag] = &entry{tag: tag, dir: s.dir(tag), created: time.Now().UTC(), phantom: true,
			damage: &DamagedError{Tag: tag, File: "branch", Err: reason}}
		s.events.Emit(event.Event{Kind: event.SnapshotFailed, Snapshot: tag, Detail: reason.Error()})
	}
}
