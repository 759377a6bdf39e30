package store

import (
	"os"
	"slices"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/phase"
)

// dropTransientLocked starts the removal of e, in the background, if e is transient or unnamed and
// no sandbox needs it.
func (s *Store) dropTransientLocked(e *entry) {
	if e.manifest == nil || e.Phase == phase.Deleting || e.Phase == phase.Gone || e.refs.keeping() > 0 {
		return
	}
	if e.IsUnnamed() && e.refs.follow > 0 || !e.IsUnnamed() && !e.manifest.Transient {
		return
	}
	e.EnterLocked(phase.Deleting)
	s.drops.Go(func() {
		if err := s.removeOrUnname(e); err != nil {
			s.mu.Lock()
			e.UndeleteLocked() // the next start tries again
			s.mu.Unlock()
		}
	})
}

// HoldTransient keeps transient snapshots from being deleted until release is called. It is used
// while sandboxes of an earlier daemon are taken over. If one of these sandboxes is lost, its
// snapshot must not be deleted, because other sandboxes may run from the snapshot. If allKnown is
// true, release deletes the transient snapshots that are not in use. Otherwise these snapshots stay
// for a later daemon that knows all sandboxes.
func (s *Store) HoldTransient() (release func(allKnown bool)) {
	held := make(map[string]func()) // functions that end the references, by tag
	s.mu.Lock()
	for tag, e := range s.byTag {
		if e.manifest != nil && e.manifest.Transient {
			held[tag] = nil
		}
	}
	s.mu.Unlock()
	for tag := range held {
		if unpin, err := s.Pin(tag); err == nil { // an error means that the snapshot is being deleted
			held[tag] = unpin
		}
	}
	return func(allKnown bool) {
		for tag, unpin := range held {
			const own = 1 // the pin that HoldTransient has made
			if info, err := s.Info(tag); err == nil && unpin != nil && (allKnown || info.Leases > own) {
				unpin()
			}
		}
		if allKnown {
			s.DropUnused()
		}
	}
}

// DropUnused deletes the transient and unnamed snapshots that no sandbox needs. It must be called
// after all sandboxes of an earlier daemon have been taken over.
func (s *Store) DropUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byTag {
		s.dropTransientLocked(e)
	}
}

// Pin keeps a snapshot from being deleted, until unpin is called. The files of a pinned snapshot
// may be closed, and its layers dropped from RAM.
func (s *Store) Pin(tag string) (unpin func(), err error) {
	if err := snapshot.CheckTag(tag); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byTag[tag]
	if e == nil || !e.Listed() {
		return nil, &NotFoundError{Tag: tag}
	}
	e.refs.pin++
	done := false
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !done {
			done = true
			e.refs.pin--
			s.dropTransientLocked(e)
		}
	}, nil
}

// Cool drops the layers of a snapshot from RAM, if the snapshot is on disk and no sandbox uses it.
// The next use of the snapshot reads the layers back.
func (s *Store) Cool(tag string) {
	s.mu.Lock()
	e := s.byTag[tag]
	s.mu.Unlock()
	if e == nil {
		return
	}
	e.hotMu.Lock() // a new lease takes this lock to open the files
	defer e.hotMu.Unlock()
	s.mu.Lock()
	busy := e.refs.using() > 0 || e.InRAM() || e.manifest == nil
	var cold []string
	if !busy {
		for _, l := range e.manifest.Memory {
			if !s.isSharedLocked(e, l.Owner) {
				cold = append(cold, l.Owner)
			}
		}
	}
	s.mu.Unlock()
	if busy {
		return
	}
	e.closeHot()
	for _, owner := range cold {
		os.RemoveAll(s.layerDir(owner))
	}
}

// isSharedLocked reports whether a snapshot other than e has the memory layer of the given owner.
// It ignores snapshots that are being deleted.
func (s *Store) isSharedLocked(e *entry, owner string) bool {
	return slices.ContainsFunc(s.memory[owner], func(o *entry) bool {
		return o != e && (o.Phase != phase.Deleting || o.InRAM())
	})
}

// Quiesce waits until all published snapshots are flushed, and unneeded snapshots are deleted.
func (s *Store) Quiesce() {
	s.mu.Lock()
	var pending []chan struct{}
	for _, e := range s.byTag {
		if e.flushed != nil {
			pending = append(pending, e.flushed)
		}
	}
	s.mu.Unlock()
	for _, done := range pending {
		<-done
	}
	s.drops.Wait()
}
