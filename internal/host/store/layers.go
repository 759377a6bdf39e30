package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/snapshot"
)

// A memory layer is named after its owner, the snapshot that it was made for. A name proves
// nothing: any manifest can claim it. So a snapshot uses a layer in RAM in two cases only:
//
//   - the snapshot has the layer's file on disk, and the RAM holds a copy of exactly that file, as
//     <ram>/<owner>/origin says. Snapshots of one chain have links to one file, so they share the
//     copy;
//   - the snapshot was published hot by this store, from a lease, and has not been flushed yet.
//
// An imported snapshot that names a layer of another snapshot maps its own file from disk.
const originFile = "origin"

// openLayer opens a memory layer in RAM, if the layer is there or fits. Otherwise it opens the file
// on disk, where the first access to a page is slower and nothing else differs. unflushed says that
// the snapshot may have the layer in RAM only. usual is the disk usage of the layer without pages
// that VMMs have added, as far as known.
func (s *Store) openLayer(dir string, m *snapshot.Manifest, l snapshot.File, unflushed bool) (
	f *os.File, usual uint64, err error) {
	disk, err := s.openSized(layerPath(dir, m, l.Owner), l.Bytes)
	if errors.Is(err, errMissing) && unflushed {
		if f, err = s.openHot(l); err != nil {
			return nil, 0, err
		}
		return f, fileBlocks(f), nil
	}
	if err != nil {
		return nil, 0, err
	}
	usual = fileBlocks(disk)
	hot, err := s.openCopy(l, disk)
	if err == nil && hot == nil && s.hasRoom(l.Bytes) {
		hot, err = s.readBack(l, disk)
	}
	if err != nil {
		return nil, 0, errors.Join(err, disk.Close())
	}
	if hot == nil {
		return disk, usual, nil
	}
	return hot, usual, disk.Close()
}

func layerPath(dir string, m *snapshot.Manifest, owner string) string {
	return filepath.Join(dir, snapshot.LayerFile(snapshot.MemoryLayerFile, m.ID, owner))
}

// openHot opens a layer in RAM without checking its origin. The caller knows that the layer is the
// right one.
func (s *Store) openHot(l snapshot.File) (*os.File, error) {
	return s.openAlone(s.ramLayer(l.Owner), l.Bytes)
}

// openCopy opens the copy in RAM of a layer's file on disk, or returns nil if there is none.
func (s *Store) openCopy(l snapshot.File, disk *os.File) (*os.File, error) {
	id, err := identify(disk)
	if err != nil || s.origin(l.Owner) != id {
		return nil, err
	}
	f, err := s.openHot(l)
	if err != nil {
		return nil, nil // unusable; the file on disk is used instead
	}
	return f, nil
}

// origin returns the file on disk of which the layer in RAM is a copy; the zero fileID if it is not
// a copy.
func (s *Store) origin(owner string) (id fileID) {
	p, err := s.readBounded(filepath.Join(s.layerDir(owner), originFile), 4096)
	if err != nil || json.Unmarshal(p, &id) != nil {
		return fileID{}
	}
	return id
}

// setOrigin records that the layer in dir has the content of the file on disk.
func setOrigin(dir string, disk *os.File) error {
	id, err := identify(disk)
	if err != nil {
		return err
	}
	p, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, originFile), p, 0o600)
}

// readBack copies a layer into RAM. It returns nil if there is not enough room, or if another
// snapshot of the chain has read it back at the same time: the first copy stays.
func (s *Store) readBack(l snapshot.File, disk *os.File) (*os.File, error) {
	if identifyPath(s.ramLayer(l.Owner)) != (fileID{}) {
		return nil, nil
	}
	tmp := s.layerDir(l.Owner) + "." + snapshot.NewID()
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	err := copyFile(filepath.Join(tmp, snapshot.MemoryLayerFile), disk)
	if err == nil {
		err = setOrigin(tmp, disk)
	}
	if err == nil {
		err = unix.Rename(tmp, s.layerDir(l.Owner)) // layer and origin at once
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return s.openCopy(l, disk)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return nil, nil
	}
	return nil, fmt.Errorf("read it back into RAM: %w", err)
}

// ramReserve is how much of the RAM file system stays free, in bytes, because sandboxes need memory
// too.
const ramReserve = 256 << 20

func (s *Store) hasRoom(n uint64) bool {
	free, _, err := s.ramRoom()
	return err == nil && free > n+ramReserve
}

// findLayer returns the path on disk of a memory layer that m inherits, or "". It looks in the
// snapshot that m was branched from, in the snapshot with the ID below, and at the origin or
// destination of the copy in RAM.
func (s *Store) findLayer(m *snapshot.Manifest, below, owner string) string {
	var fromParent string
	var others []string
	s.mu.Lock()
	for _, e := range s.byTag {
		switch {
		case e.manifest == nil || e.manifest.ID == m.ID || !hasMemory(e.manifest, owner):
		case below == "" && m.Parent != nil && e.manifest.ID == m.Parent.ID, e.manifest.ID == below:
			fromParent = layerPath(e.dir, e.manifest, owner)
		default:
			others = append(others, layerPath(e.dir, e.manifest, owner))
		}
	}
	s.mu.Unlock()
	if fromParent != "" && identifyPath(fromParent) != (fileID{}) { // an unflushed snapshot may not have the layer yet
		return fromParent
	}
	origin := s.origin(owner)
	for _, path := range others {
		if id := identifyPath(path); id != (fileID{}) && id == origin {
			return path
		}
	}
	return ""
}

// linkLayer gives dir, the directory of m, its own link to a memory layer that m inherits, see
// findLayer. It reports whether the layer was found on disk.
func (s *Store) linkLayer(m *snapshot.Manifest, below, owner, dir string) (bool, error) {
	s.moves.RLock()
	defer s.moves.RUnlock()
	from := s.findLayer(m, below, owner)
	if from == "" {
		return false, nil
	}
	return true, os.Link(from, layerPath(dir, m, owner))
}

// hasMemory reports whether a snapshot has the memory layer of owner.
func hasMemory(m *snapshot.Manifest, owner string) bool {
	return slices.ContainsFunc(m.Memory, func(l snapshot.File) bool { return l.Owner == owner })
}
