package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"github.com/forkd/forkd/internal/host/fileid"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/hardlink"
	"github.com/forkd/forkd/internal/host/sparse"
)

// The directory of a memory layer in RAM is named after the layer's owner, which is the snapshot
// that the layer was made for. Any manifest can claim such a name, so the name alone proves
// nothing. A snapshot uses a layer in RAM only in two cases:
//
//   - The snapshot has the layer's file on disk, and <ram>/<owner>/origin says that the layer in
//     RAM is a copy of exactly that file. The snapshots of a chain have links to the same file, so
//     they share the copy.
//   - This store has published the snapshot, with layers from a lease, and has not flushed it yet.
//
// If an imported snapshot names a layer of another snapshot, it uses its own file on disk.
const originFile = "origin"

// openLayer opens a memory layer in RAM. If the layer is not in RAM, openLayer copies it to RAM. If
// RAM has too little room for the copy, openLayer opens the file on disk, where the first access to
// each page is slower. If unflushed is true, the layer may be only in RAM. openLayer also returns
// the number of bytes that the layer takes without the pages that VMMs have added to holes. If the
// layer is only in RAM, the number includes these pages.
func (s *Store) openLayer(dir string, m *snapshot.Manifest, l snapshot.File, unflushed bool) (
	f *os.File, usual uint64, err error) {
	disk, err := s.openSized(layerPath(dir, m, l.Owner), l.Bytes)
	if errors.Is(err, errMissing) && unflushed {
		if f, err = s.openHot(l); err != nil {
			return nil, 0, err
		}
		return f, fileid.BlocksOf(f), nil
	}
	if err != nil {
		return nil, 0, err
	}
	usual = fileid.BlocksOf(disk)
	hot, err := s.openCopy(l, disk)
	if err == nil && hot == nil && !isDecrypted(disk) && s.hasRoom(l.Bytes) {
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

// openHot opens a layer in RAM without checking its origin. The caller must know that the file is
// the right layer.
func (s *Store) openHot(l snapshot.File) (*os.File, error) {
	return s.openAlone(s.ramLayer(l.Owner), l.Bytes)
}

// openCopy opens the layer in RAM that is a copy of a file on disk. If there is no such copy,
// openCopy returns nil.
func (s *Store) openCopy(l snapshot.File, disk *os.File) (*os.File, error) {
	id, err := fileid.Of(disk)
	if err != nil || s.origin(l.Owner) != id {
		return nil, err
	}
	f, err := s.openHot(l)
	if err != nil {
		return nil, nil // the copy cannot be used, but the file on disk can be used
	}
	return f, nil
}

// origin returns the fileid.ID of the file that was copied to the layer in RAM. If the layer is not a
// copy, origin returns the zero fileid.ID.
func (s *Store) origin(owner string) (id fileid.ID) {
	p, err := s.readBounded(filepath.Join(s.layerDir(owner), originFile), 4096)
	if err != nil || json.Unmarshal(p, &id) != nil {
		return fileid.ID{}
	}
	return id
}

// setOrigin records that the layer in dir is a copy of the given file on disk.
func setOrigin(dir string, disk *os.File) error {
	id, err := fileid.Of(disk)
	if err != nil {
		return err
	}
	p, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, originFile), p, 0o600)
}

// readBack copies a layer from disk to RAM. It returns nil if there is too little room. It also
// returns nil if another snapshot of the chain has made the copy at the same time. In that case,
// the other copy is used.
func (s *Store) readBack(l snapshot.File, disk *os.File) (*os.File, error) {
	if fileid.OfPath(s.ramLayer(l.Owner)) != (fileid.ID{}) {
		return nil, nil
	}
	tmp := s.layerDir(l.Owner) + "." + snapshot.NewID()
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	err := sparse.Copy(filepath.Join(tmp, snapshot.MemoryLayerFile), disk)
	if err == nil {
		err = setOrigin(tmp, disk)
	}
	if err == nil {
		err = unix.Rename(tmp, s.layerDir(l.Owner)) // makes the layer and its origin appear together
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return s.openCopy(l, disk)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return nil, nil
	}
	return nil, fmt.Errorf("read it back into RAM: %w", err)
}

// ramReserve is how many bytes of the RAM file system stay free, because sandboxes need the memory
// too.
const ramReserve = 256 << 20

func (s *Store) hasRoom(n uint64) bool {
	free, _, err := s.ramRoom()
	return err == nil && free > n+ramReserve
}

// findLayer returns the path on disk of a memory layer that m inherits. The layer has the given
// owner. If findLayer does not find the layer, it returns "". findLayer looks first in the snapshot
// with the given ID (below). If that ID is empty, it looks first in the snapshot that m was
// branched from. If the layer is not there, it looks in all other snapshots for the file from which
// the layer in RAM was copied.
func (s *Store) findLayer(m *snapshot.Manifest, below, owner string) string {
	if below == "" && m.Parent != nil {
		below = m.Parent.ID
	}
	var fromParent string
	s.mu.Lock()
	if e := s.byID[below]; e != nil && below != m.ID && e.manifest.HasMemory(owner) {
		fromParent = layerPath(e.dir, e.manifest, owner)
	}
	s.mu.Unlock()
	// The file may be missing, because an unflushed snapshot may not have the layer on disk yet.
	if fromParent != "" && fileid.OfPath(fromParent) != (fileid.ID{}) {
		return fromParent
	}
	var others []string
	s.mu.Lock()
	for _, e := range s.memory[owner] {
		if e.manifest.ID != m.ID && e.manifest.ID != below {
			others = append(others, layerPath(e.dir, e.manifest, owner))
		}
	}
	s.mu.Unlock()
	origin := s.origin(owner)
	for _, path := range others {
		if id := fileid.OfPath(path); id != (fileid.ID{}) && id == origin {
			return path
		}
	}
	return ""
}

// linkLayer makes a link in dir, the directory of m, to a memory layer that m inherits. It reports
// whether findLayer has found the layer.
func (s *Store) linkLayer(m *snapshot.Manifest, below, owner, dir string) (bool, error) {
	s.moves.RLock()
	defer s.moves.RUnlock()
	from := s.findLayer(m, below, owner)
	if from == "" {
		return false, nil
	}
	return true, hardlink.Link(from, layerPath(dir, m, owner))
}
