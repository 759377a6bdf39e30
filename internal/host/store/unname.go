package store

import (
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/event"
)

// unnamedPrefix marks the directory of a snapshot without a name; its ID follows. No tag begins
// with a dot.
const unnamedPrefix = ".unnamed-"

// Follow keeps the files of the snapshot with an ID for a sandbox that was rebased onto it, and
// returns how to end that. It can be deleted all the same: then its tag is free at once, nobody
// sees it any more, and its files stay until nobody follows it. Snapshots that a daemon has left
// without a name are there for the next one to follow until DropUnused.
func (s *Store) Follow(id string) (unfollow func(), err error) {
	e, err := s.follow(id)
	if err != nil {
		return nil, err
	}
	return s.releaser(e, &e.refs.follow), nil
}

// AcquireFollowed is Follow with the snapshot's files.
func (s *Store) AcquireFollowed(id string) (*Lease, error) {
	e, err := s.follow(id)
	if err != nil {
		return nil, err
	}
	return s.lease(e, &e.refs.follow)
}

func (s *Store) follow(id string) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if e == nil || e.phase == phaseDeleting {
		return nil, &NotFoundError{Tag: id}
	}
	e.refs.follow++
	return e, nil
}

// UnnamedBytes returns what the snapshot with an ID takes on disk by itself, or in RAM if it came
// no further, if it was deleted and is still followed. It is 0 otherwise.
func (s *Store) UnnamedBytes(id string) uint64 {
	s.mu.Lock()
	e := s.byTag[unnamedPrefix+id]
	if e == nil {
		s.mu.Unlock()
		return 0
	}
	files, state := s.ownFilesLocked(e), e.manifest.State.Bytes
	s.mu.Unlock()
	return blocks(files.memory) + blocks(files.disk) + state
}

// removeOrUnname deletes a condemned snapshot, or takes its name away while somebody follows it.
func (s *Store) removeOrUnname(e *entry) error {
	s.mu.Lock()
	followed := e.refs.follow > 0
	s.mu.Unlock()
	if !followed {
		return s.remove(e)
	}
	e.flushMu.Lock() // it moves
	defer e.flushMu.Unlock()
	s.sealer.drop(e.tag)
	e.hotMu.Lock() // opening its files waits
	defer e.hotMu.Unlock()
	s.moves.Lock()
	defer s.moves.Unlock()
	name := unnamedPrefix + e.manifest.ID
	if err := os.Rename(e.dir, s.dir(name)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(event.SnapshotDeleted, e)
	s.dropLocked(e)
	e.tag, e.dir = name, s.dir(name)
	if e.inRAM() {
		e.enterLocked(phaseUnnamedHot)
	} else {
		e.enterLocked(phaseUnnamed)
	}
	s.addLocked(e)
	s.dropTransientLocked(e) // who followed it may have gone meanwhile
	return nil
}

// reloadUnnamed takes up a snapshot without a name if it is whole, and removes it otherwise.
func (s *Store) reloadUnnamed(id string) error {
	dir := s.dir(unnamedPrefix + id)
	m, err := s.readManifest(filepath.Join(dir, snapshot.ManifestFile))
	if err != nil || m.ID != id {
		return os.RemoveAll(dir)
	}
	own := identifyPath(layerPath(dir, m, id))
	e := &entry{tag: unnamedPrefix + id, dir: dir, manifest: m, created: m.Created}
	if own == (fileID{}) {
		e.enterLocked(phaseUnnamedHot)
	} else {
		e.enterLocked(phaseUnnamed)
	}
	s.addLocked(e)
	return nil
}
