package store

import (
	"os"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// dropTransientLocked removes e in the background if it is transient or has no name, and no sandbox
// needs it any more.
func (s *Store) dropTransientLocked(e *entry) {
	if e.manifest == nil || e.phase == phaseDeleting || e.phase == phaseGone || e.refs.keeping() > 0 {
		return
	}
	if e.isUnnamed() && e.refs.follow > 0 || !e.isUnnamed() && !e.manifest.Transient {
		return
	}
	e.enterLocked(phaseDeleting)
	s.drops.Go(func() {
		if err := s.removeOrUnname(e); err != nil {
			s.mu.Lock()
			e.undeleteLocked() // the next start tries again
			s.mu.Unlock()
		}
	})
}

// HoldTransient keeps transient snapshots until all sandboxes that run from them have been taken over:
// one that is lost must not take along the snapshot of the others. release lets go of them, and removes
// what is not used. If not all is known of which sandboxes there are, what no other one uses is kept
// until a later daemon knows.
func (s *Store) HoldTransient() (release func(allKnown bool)) {
	held := make(map[string]func()) // by tag
	for _, info := range s.List() {
		if !info.Transient {
			continue
		}
		if unpin, err := s.Pin(info.Tag); err == nil { // else it is going already
			held[info.Tag] = unpin
		}
	}
	return func(allKnown bool) {
		for _, info := range s.List() {
			const own = 1 // our pin
			if unpin := held[info.Tag]; unpin != nil && (allKnown || info.Leases > own) {
				unpin()
			}
		}
		if allKnown {
			s.DropUnused()
		}
	}
}

// DropUnused removes the transient snapshots, and those without a name, that no sandbox needs. It
// is called when all sandboxes of an earlier daemon have been taken over.
func (s *Store) DropUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byTag {
		s.dropTransientLocked(e)
	}
}

// Pin keeps a snapshot from being deleted, without keeping its files open or in RAM, and returns
// how to end that.
func (s *Store) Pin(tag string) (unpin func(), err error) {
	if err := snapshot.CheckTag(tag); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byTag[tag]
	if e == nil || !e.listed() {
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

// Cool frees the RAM of a snapshot that is on disk and that no sandbox runs from. The next use
// reads it back.
func (s *Store) Cool(tag string) {
	s.mu.Lock()
	e := s.byTag[tag]
	s.mu.Unlock()
	if e == nil {
		return
	}
	e.hotMu.Lock() // a new lease opens the files behind it
	defer e.hotMu.Unlock()
	s.mu.Lock()
	busy := e.refs.using() > 0 || e.inRAM() || e.manifest == nil
	var cold []string
	if !busy {
		for _, l := range e.manifest.Memory {
			if s.memoryUsersLocked(l.Owner) == 1 {
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

// memoryUsersLocked counts the snapshots with the memory layer of owner, without those that are
// going.
func (s *Store) memoryUsersLocked(owner string) int {
	n := 0
	for _, e := range s.byTag {
		if e.manifest != nil && (e.phase != phaseDeleting || e.inRAM()) && hasMemory(e.manifest, owner) {
			n++
		}
	}
	return n
}

// Quiesce waits until what has been published is flushed and what nobody needs is gone.
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
