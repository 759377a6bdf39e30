package store

import (
	"cmp"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/phase"
)

// maxFailed is the maximum number of failed branches in the list. The number is limited because
// each entry takes some memory, and a client can make any number of branches that fail.
const maxFailed = 256

// ListFailed adds a failed branch to the list of snapshots, with the reason. It is for branches
// that failed while no client waited for them, or that are lost. An entry stays until the branch is
// deleted or made again, or the daemon exits. If there are too many entries, the oldest entry of
// the owner with the most entries is dropped, so no owner displaces the entries of other owners.
// The parameter owner is the owner of the sandbox that was branched, or empty if unknown. An entry
// without an owner is dropped only when no owner has two entries.
func (s *Store) ListFailed(tag, owner string, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTag[tag] == nil && s.reserved[tag] == nil {
		e := &entry{tag: tag, dir: s.dir(tag), created: time.Now().UTC(), owner: owner,
			damage: &DamagedError{Tag: tag, File: "branch", Err: reason}}
		e.EnterLocked(phase.Failed)
		s.addLocked(e)
		s.forgetFailedLocked()
		s.events.Emit(event.Event{Kind: event.SnapshotFailed, Owner: owner, Snapshot: tag, Detail: reason.Error()})
	}
}

// forgetFailedLocked drops a failed branch from the list if there are too many.
func (s *Store) forgetFailedLocked() {
	failed := make(map[string][]*entry) // by owner; without an owner, each tag is a group of its own
	n := 0
	for _, e := range s.byTag {
		if e.Phase == phase.Failed {
			group := cmp.Or(e.owner, "tag "+e.tag) // no owner's name begins with "tag "
			failed[group] = append(failed[group], e)
			n++
		}
	}
	if n <= maxFailed {
		return
	}
	var most []*entry
	for _, list := range failed {
		slices.SortFunc(list, func(a, b *entry) int { return a.created.Compare(b.created) })
		if len(list) > len(most) || len(list) == len(most) && list[0].created.Before(most[0].created) {
			most = list
		}
	}
	most[0].EnterLocked(phase.Gone)
	s.dropLocked(most[0])
}
