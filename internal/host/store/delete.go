package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/phase"
)

// DeleteMode says what a deletion does with the snapshots that build on the deleted snapshot.
type DeleteMode int

// Modes of deletion. A snapshot that sandboxes run from is never deleted. If sandboxes only follow
// a snapshot (see Follow), the snapshot loses its name immediately, and its files are deleted when
// the last of these sandboxes stops following it.
const (
	DeleteSingle  DeleteMode = iota // return an error if any snapshot builds on the snapshot
	DeleteCascade                   // also delete all snapshots that build on it
	DeleteForce                     // keep the snapshots that build on it, which have their own links to its layers
)

// deletedPrefix is the prefix of the name of a directory whose deletion has begun. No tag begins
// with a dot.
const deletedPrefix = ".deleted-"

// Deleted names a snapshot that a deletion has removed.
type Deleted struct{ Tag, ID string } // ID is empty if the snapshot was damaged

// Delete deletes the snapshot with the given tag. It returns the deleted snapshots, dependents
// first. If it has deleted nothing, the error is a *NotFoundError or an *InUseError. If the snapshot
// is still arriving, Delete first ends its arrival.
func (s *Store) Delete(tag string, mode DeleteMode) ([]Deleted, error) {
	if err := snapshot.CheckTag(tag); err != nil {
		return nil, err
	}
	victims, err := s.condemn(tag, mode)
	if err != nil {
		return nil, err
	}
	return s.removeAll(victims)
}

// removeAll deletes condemned snapshots, in order. It returns the deleted snapshots.
func (s *Store) removeAll(victims []*entry) ([]Deleted, error) {
	going := make([]Deleted, len(victims))
	for i, e := range victims {
		going[i] = Deleted{Tag: e.tag, ID: e.id()}
	}
	for i, e := range victims {
		if err := s.removeOrUnname(e); err != nil {
			s.mu.Lock()
			for _, rest := range victims[i:] {
				rest.UndeleteLocked()
			}
			s.mu.Unlock()
			return going[:i], fmt.Errorf("delete snapshot %q: %w", going[i].Tag, err)
		}
	}
	s.spare.Keep() // after a deletion there may be room for the reserve
	s.flusher.Retry()
	return going, nil
}

// condemn chooses the snapshots to delete. From then on they cannot be leased.
func (s *Store) condemn(tag string, mode DeleteMode) ([]*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byTag[tag]
	if e == nil && s.reserved[tag] != nil {
		return nil, &ExistsError{Tag: tag, InFlight: true}
	}
	if e == nil || !e.Listed() {
		return nil, &NotFoundError{Tag: tag}
	}
	victims := []*entry{e}
	switch {
	case mode == DeleteSingle:
		if err := s.builtUponLocked(e); err != nil {
			return nil, err
		}
	case mode == DeleteCascade:
		victims = s.familyLocked(e, map[*entry]bool{})
	}
	for _, v := range victims {
		if err := v.usedLocked(); err != nil {
			return nil, err
		}
	}
	for _, v := range victims {
		v.EnterLocked(phase.Deleting)
	}
	return victims, nil
}

// usedLocked returns an *InUseError if a sandbox uses e.
func (e *entry) usedLocked() error {
	if n := e.refs.keeping(); n > 0 {
		return &InUseError{Tag: e.tag, Leases: n}
	}
	return nil
}

// builtUponLocked returns an *InUseError if other snapshots build on e. It counts states of
// suspended sandboxes as sandboxes, because such states cannot be deleted by their tags. It does not
// count a state that is being deleted: the state has links of its own to its layers.
func (s *Store) builtUponLocked(e *entry) error {
	var named []string
	suspended := 0
	for _, tag := range s.dependentsLocked(e) {
		switch d := s.byTag[tag]; {
		case !d.manifest.Transient:
			named = append(named, tag)
		case d.Phase != phase.Deleting:
			suspended += max(1, d.refs.keeping())
		}
	}
	switch {
	case len(named) > 0:
		return &InUseError{Tag: e.tag, Dependents: named}
	case suspended > 0:
		return &InUseError{Tag: e.tag, Leases: suspended}
	}
	return nil
}

// familyLocked returns all snapshots that build on e, directly or indirectly, and then e.
func (s *Store) familyLocked(e *entry, seen map[*entry]bool) []*entry {
	if seen[e] {
		return nil
	}
	seen[e] = true
	var family []*entry
	for _, tag := range s.dependentsLocked(e) {
		family = append(family, s.familyLocked(s.byTag[tag], seen)...)
	}
	return append(family, e)
}

// remove deletes a condemned snapshot. It first renames the directory, which makes the snapshot
// disappear immediately. If the daemon crashes after that, the next start removes the directory.
func (s *Store) remove(e *entry) error {
	e.flushMu.Lock()
	defer e.flushMu.Unlock()
	s.sealer.Drop(e.tag)
	e.cool()
	grave := filepath.Join(s.snapshots(), deletedPrefix+snapshot.NewID())
	s.moves.Lock()
	err := os.Rename(e.dir, grave)
	s.moves.Unlock()
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	s.mu.Lock()
	s.dropLocked(e)
	if !e.IsUnnamed() { // an unnamed snapshot had this event when it lost its name
		s.tell(event.SnapshotDeleted, e)
	}
	e.EnterLocked(phase.Gone)
	keys := s.unusedLocked(e.keys)
	var cold []string
	if e.manifest != nil {
		for _, l := range e.manifest.Memory {
			if len(s.memory[l.Owner]) == 0 {
				cold = append(cold, l.Owner)
			}
		}
	}
	s.mu.Unlock()
	for _, owner := range cold {
		os.RemoveAll(s.layerDir(owner))
	}
	s.backlog.Admit() // after the deletion there may be room
	if err := errors.Join(s.destroy(keys), os.RemoveAll(grave)); err != nil {
		return err
	}
	if e.manifest != nil && e.manifest.Disk == nil {
		return nil
	}
	return s.dropBases()
}
