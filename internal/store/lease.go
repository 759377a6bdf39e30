package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guestmem"
	"github.com/forkd/forkd/internal/memlayer"
	"github.com/forkd/forkd/internal/snapshot"
)

// hotFiles are the open files of a snapshot in use. They are shared by all its forks and only ever read with pread or
// mmap, never through the file offset.
type hotFiles struct {
	manifest *snapshot.Manifest
	extents  []memlayer.Extent
	state    *os.File
	layers   []*os.File
	disk     []*os.File // base image, then layers; empty without a disk
}

// Lease is the right to use a snapshot: while it is held, the snapshot is not deleted and its files stay open.
// All files are open for reading only and shared: use pread or mmap, and do not close them.
type Lease struct {
	*hotFiles
	release func()
}

// Manifest returns the snapshot's manifest, which must not be changed.
func (l *Lease) Manifest() *snapshot.Manifest { return l.manifest }

// Extents returns the memory map over Layers; it must not be changed.
func (l *Lease) Extents() []memlayer.Extent { return l.extents }

// State returns the vmstate file.
func (l *Lease) State() *os.File { return l.state }

// Layers returns the memory layers, base first.
func (l *Lease) Layers() []*os.File { return l.layers }

// Disk returns the base image and the disk layers over it, base first; nothing if the snapshot has no disk.
func (l *Lease) Disk() []*os.File { return l.disk }

// Release ends the lease. Further calls do nothing.
func (l *Lease) Release() { l.release() }

// Acquire leases the snapshot tag. The first call for a snapshot opens and checks its files; a *DamagedError says what
// is wrong with them.
func (s *Store) Acquire(tag string) (*Lease, error) {
	if err := snapshot.CheckTag(tag); err != nil {
		return nil, err
	}
	s.mu.Lock()
	e := s.byTag[tag]
	switch {
	case e == nil && s.reserved[tag] != nil:
		s.mu.Unlock()
		return nil, &ExistsError{Tag: tag, InFlight: true}
	case e == nil || e.deleting:
		s.mu.Unlock()
		return nil, &NotFoundError{Tag: tag}
	case e.damage != nil:
		s.mu.Unlock()
		return nil, e.damage
	}
	e.leases++
	s.mu.Unlock()
	release := sync.OnceFunc(func() {
		s.mu.Lock()
		victim := s.releaseLocked(e)
		s.mu.Unlock()
		if victim != nil {
			s.closeIdle(victim)
		}
	})
	hot, err := s.heat(e)
	if err != nil {
		release()
		return nil, err
	}
	return &Lease{hotFiles: hot, release: release}, nil
}

// heat opens the files of a snapshot once. The caller holds a lease.
func (s *Store) heat(e *entry) (*hotFiles, error) {
	e.hotMu.Lock()
	defer e.hotMu.Unlock()
	if e.hot != nil {
		return e.hot, nil
	}
	s.mu.Lock()
	m, dir := e.manifest, e.dir
	s.mu.Unlock()
	h := &hotFiles{manifest: m}
	if err := s.openFiles(h, dir); err != nil {
		h.close()
		return nil, err
	}
	e.hot = h
	return h, nil
}

// cool closes the files of a snapshot that nobody leases.
func (e *entry) cool() {
	e.hotMu.Lock()
	defer e.hotMu.Unlock()
	e.closeHot()
}

// closeHot does it. Preconditions: e.hotMu is held.
func (e *entry) closeHot() {
	if e.hot != nil {
		e.hot.close()
		e.hot = nil
	}
}

func (h *hotFiles) close() {
	for _, f := range append(append([]*os.File{h.state}, h.layers...), h.disk...) {
		if f != nil {
			f.Close()
		}
	}
}

func (s *Store) openFiles(h *hotFiles, dir string) error {
	m := h.manifest
	damaged := func(file string, err error) error { return &DamagedError{Tag: m.Tag, File: file, Err: err} }
	var err error
	if h.state, err = openSized(filepath.Join(dir, snapshot.StateFile), m.State.Bytes); err != nil {
		return damaged(snapshot.StateFile, err)
	}
	sizes := make([]uint64, len(m.Memory))
	for i, l := range m.Memory {
		f, err := s.openLayer(dir, m, l)
		if err != nil {
			return damaged(snapshot.MemoryLayerFile, err)
		}
		h.layers = append(h.layers, f)
		sizes[i] = l.Bytes
	}
	p, err := readBounded(filepath.Join(dir, snapshot.MemoryMapFile), int64(snapshot.MaxMemoryMap))
	if err == nil && uint64(len(p)) != m.Map.Bytes {
		err = fmt.Errorf("%d bytes: the manifest says %d", len(p), m.Map.Bytes)
	}
	if err == nil {
		h.extents, err = snapshot.ParseMemoryMap(p, sizes, ramEnd(m.Machine.MemoryBytes))
	}
	if err != nil {
		return damaged(snapshot.MemoryMapFile, err)
	}
	if m.Disk == nil {
		return nil
	}
	base, err := openSized(m.Disk.Base.Path, m.Disk.Base.Bytes)
	if err != nil {
		return damaged("base image "+m.Disk.Base.Path, err)
	}
	h.disk = append(h.disk, base)
	for _, l := range m.Disk.Layers {
		name := snapshot.LayerFile(snapshot.DiskLayerFile, m.ID, l.Owner)
		f, err := openSized(filepath.Join(dir, name), l.Bytes)
		if err != nil {
			return damaged(name, err)
		}
		h.disk = append(h.disk, f)
	}
	return nil
}

// ramEnd is the guest physical address behind size bytes of RAM.
func ramEnd(size uint64) uint64 {
	if size > uint64(guestmem.HoleStart) {
		return size + uint64(guestmem.HoleEnd-guestmem.HoleStart)
	}
	return size
}

// openLayer opens a memory layer in RAM, reading it back from disk if it is not there. Where the RAM file system has
// no room it opens the file on disk instead: slower for the first touch of a page, otherwise the same.
func (s *Store) openLayer(dir string, m *snapshot.Manifest, l snapshot.File) (*os.File, error) {
	if f, err := openSized(s.ramLayer(l.Owner), l.Bytes); err == nil {
		return f, nil
	}
	disk := filepath.Join(dir, snapshot.LayerFile(snapshot.MemoryLayerFile, m.ID, l.Owner))
	if _, err := os.Stat(disk); err != nil { // not flushed yet: another snapshot may have it
		if other := s.findLayer(l.Owner); other != "" {
			disk = other
		}
	}
	f, err := openSized(disk, l.Bytes)
	if err != nil || !s.hasRoom(l.Bytes) {
		return f, err
	}
	f.Close()
	if err := os.MkdirAll(s.ramDir(l.Owner), 0o700); err != nil {
		return nil, err
	}
	// Two snapshots of one chain may be heated at once: each fills a file of its own, and the last rename stays.
	tmp := s.ramLayer(l.Owner) + "." + snapshot.NewID()
	if err := copyFile(tmp, disk); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return openSized(disk, l.Bytes)
		}
		return nil, err
	}
	if err := os.Rename(tmp, s.ramLayer(l.Owner)); err != nil {
		os.Remove(tmp)
		return nil, err
	}
	return openSized(s.ramLayer(l.Owner), l.Bytes)
}

// ramReserve is what stays free of the RAM file system, in bytes: sandboxes need memory too.
const ramReserve = 256 << 20

func (s *Store) hasRoom(n uint64) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(s.ram, &st); err != nil {
		return false
	}
	return st.Bavail*uint64(st.Bsize) > n+ramReserve
}

// Room returns how many bytes the disk under the store has left.
func (s *Store) Room() (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.root, &st); err != nil {
		return 0, fmt.Errorf("ask for the room in %s: %w", s.root, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// openSized opens a regular file for reading and checks its length in bytes.
func openSized(path string, size uint64) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("file is missing")
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil && uint64(st.Size()) != size {
		err = fmt.Errorf("%d bytes: the manifest says %d (truncated, or replaced)", st.Size(), size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
