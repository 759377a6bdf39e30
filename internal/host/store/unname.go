package store

import (
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/fileid"
	"github.com/forkd/forkd/internal/host/phase"
)

// unnamedPrefix is the prefix of the directory name of an unnamed snapshot. The snapshot's ID
// follows. No tag begins with a dot.
const unnamedPrefix = ".unnamed-"

// Follow keeps the files of the snapshot with the given ID until unfollow is called. It is for a
// sandbox of the given owner that was rebased onto the snapshot. The snapshot can still be deleted.
// If it is deleted, its tag is free and the snapshot is invisible immediately, but its files stay
// until no sandbox follows it. Snapshots that an earlier daemon left unnamed can be followed until
// DropUnused is called.
func (s *Store) Follow(id, owner string) (unfollow func(), err error) {
	e, err := s.follow(id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	e.follower = owner
	s.mu.Unlock()
	return s.releaser(e, &e.refs.follow), nil
}

// AcquireFollowed keeps the files of a followed snapshot, as Follow does, and opens them.
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
	if e == nil || e.Phase == phase.Deleting {
		return nil, &NotFoundError{Tag: id}
	}
	e.refs.follow++
	return e, nil
}

// UnnamedBytes returns how much space a deleted snapshot still takes because a sandbox follows it.
// The space is on disk, or in RAM if the snapshot was not flushed. For any other ID the result is
// 0.
func (s *Store) UnnamedBytes(id string) uint64 {
	s.mu.Lock()
	e := s.byTag[unnamedPrefix+id]
	if e == nil {
		s.mu.Unlock()
		return 0
	}
	files, state := s.ownFilesLocked(e), e.manifest.State.Bytes
	s.mu.Unlock()
	return fileid.Blocks(files.memory) + fileid.Blocks(files.disk) + state
}

// removeOrUnname deletes a condemned snapshot. If a sandbox follows the snapshot, removeOrUnname
// removes only the snapshot's name.
func (s *Store) removeOrUnname(e *entry) error {
	if err := s.takeAway(e); err != nil {
		return err
	}
	if gone := s.gone.Load(); gone != nil && e.manifest != nil {
		(*gone)(e.manifest)
	}
	return nil
}

// OnGone tells the store to call f with the manifest of each snapshot that can no longer be forked,
// for any reason. If OnGone was called before, the store first calls the functions of the earlier
// calls. A damaged snapshot without a readable manifest is omitted. For a snapshot that first loses
// its name and is deleted later, f is called twice. OnGone must not be called concurrently.
func (s *Store) OnGone(f func(*snapshot.Manifest)) {
	all := f
	if earlier := s.gone.Load(); earlier != nil {
		all = func(m *snapshot.Manifest) {
			(*earlier)(m)
			f(m)
		}
	}
	s.gone.Store(&all)
}

// takeAway is like removeOrUnname, but does not call the function that OnGone has set.
func (s *Store) takeAway(e *entry) error {
	s.mu.Lock()
	followed, arriving := e.refs.follow > 0, e.arriving
	s.mu.Unlock()
	if arriving != nil {
		return arriving.cancel()
	}
	if !followed {
		return s.remove(e)
	}
	e.flushMu.Lock() // needed to move the directory
	defer e.flushMu.Unlock()
	s.sealer.Drop(e.tag)
	e.hotMu.Lock() // calls that open the snapshot's files also take this lock
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
	if e.InRAM() {
		e.EnterLocked(phase.UnnamedHot)
	} else {
		e.EnterLocked(phase.Unnamed)
	}
	s.addLocked(e)
	s.dropTransientLocked(e) // the last follower may have stopped following e since it was condemned
	return nil
}

// reloadUnnamed takes over an unnamed snapshot of an earlier daemon if the snapshot is complete.
// Otherwise it removes the snapshot.
func (s *Store) reloadUnnamed(id string) error {
	dir := s.dir(unnamedPrefix + id)
	m, err := s.readManifest(filepath.Join(dir, snapshot.ManifestFile))
	if err != nil || m.ID != id {
		return os.RemoveAll(dir)
	}
	own := fileid.OfPath(layerPath(dir, m, id))
	e := &entry{tag: unnamedPrefix + id, dir: dir, manifest: m, created: m.Created}
	if own == (fileid.ID{}) {
		e.EnterLocked(phase.UnnamedHot)
	} else {
		e.EnterLocked(phase.Unnamed)
	}
	s.addLocked(e)
	return nil
}
