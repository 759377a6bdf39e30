package store

import (
	"time"

	"github.com/forkd/forkd/internal/host/event"
)

// maxFailed bounds the list of failed branches, because each takes some memory, and a client can make any
// number of branches that fail.
const maxFailed = 256

// ListFailed adds a failed branch to the list of snapshots, with the reason. It is for branches
// that failed while no client waited for them, or that are lost. An entry stays until the branch is
// deleted or made again, or the daemon exits. If there are too many entries, the oldest entry is
// dropped. The parameter owner is the owner of the sandbox, or empty if unknown.
func (s *Store) ListFailed(tag, owner string, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTag[tag] == nil && s.reserved[tag] == nil {
		e := &entry{tag: tag, dir: s.dir(tag), created: time.Now().UTC(),
			damage: &DamagedError{Tag: tag, File: "branch", Err: reason}}
		e.enterLocked(phaseFailed)
		s.addLocked(e)
		s.forgetFailedLocked()
		s.events.Emit(event.Event{Kind: event.SnapshotFailed, Owner: owner, Snapshot: tag, Detail: reason.Error()})
	}
}

// forgetFailedLocked drops the oldest failed branch from the list if there are too many.
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
