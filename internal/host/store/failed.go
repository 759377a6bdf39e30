package store

import (
	"time"

	"github.com/forkd/forkd/internal/host/event"
)

// maxFailed is how many failed branches are listed. Each is a tag and an error in memory, and a client
// can have any number of branches fail.
const maxFailed = 256

// ListFailed lists tag, a branch that nobody waited for or that is lost, as failed with the reason,
// until it is deleted, made again, or the daemon ends. Of too many, the oldest is forgotten.
func (s *Store) ListFailed(tag string, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTag[tag] == nil && s.reserved[tag] == nil {
		e := &entry{tag: tag, dir: s.dir(tag), created: time.Now().UTC(),
			damage: &DamagedError{Tag: tag, File: "branch", Err: reason}}
		e.enterLocked(phaseFailed)
		s.addLocked(e)
		s.forgetFailedLocked()
		s.events.Emit(event.Event{Kind: event.SnapshotFailed, Snapshot: tag, Detail: reason.Error()})
	}
}

// forgetFailedLocked takes the oldest failed branch off the list if there are too many.
func (s *Store) forgetFailedLocked() {
	n := 0
	var oldest *entry
	for _, e := range s.byTag {
		if e.phase != phaseFailed {
			continue
		}
		if n++; oldest == nil || e.created.Before(oldest.created) {
			oldest = e
		}
	}
	if n > maxFailed {
		oldest.enterLocked(phaseGone)
		s.dropLocked(oldest)
	}
}
