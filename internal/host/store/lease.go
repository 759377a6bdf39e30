package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/firstwrites"
	"github.com/forkd/forkd/internal/host/phase"
	"github.com/forkd/forkd/internal/proto/vm"
)

// hotFiles are the open files of a snapshot. All forks of the snapshot share these files. The files
// are read only with pread or mmap, because a read that uses the file offset would disturb other
// readers.
type hotFiles struct {
	manifest *snapshot.Manifest
	extents  []vm.Extent
	state    *os.File
	layers   []*os.File
	usual    []atomic.Uint64 // bytes that each layer takes without pages that VMMs have added, see trim
	disk     []*os.File      // base image, then layers; empty if there is no disk
	volumes  [][]*os.File    // the same for each volume
	secret   bool            // the snapshot is encrypted

	FirstWrites firstwrites.Set // pages that every child writes first; forgotten when the files are closed

	arrival *feeder.Arrival // set only if the snapshot was usable before all files had arrived
}

// Lease is the right to use a snapshot. Until it is released, the snapshot is not deleted and its
// files stay open. The files are read-only and shared: use pread or mmap, and do not close them.
type Lease struct {
	*hotFiles
	release func()
}

// Manifest returns the snapshot's manifest. The caller must not change it.
func (l *Lease) Manifest() *snapshot.Manifest { return l.manifest }

// Extents returns the memory map, whose layer numbers are indexes of Layers. The caller must not
// change it.
func (l *Lease) Extents() []vm.Extent { return l.extents }

// State returns the vmstate file.
func (l *Lease) State() *os.File { return l.state }

// Layers returns the memory layers, base first.
func (l *Lease) Layers() []*os.File { return l.layers }

// Disk returns the files of the base image and the disk layers, base first. If the snapshot has no
// disk, the result is empty.
func (l *Lease) Disk() []*os.File { return l.disk }

// Encrypted reports whether the snapshot is encrypted. Its open files are in RAM, unencrypted.
func (l *Lease) Encrypted() bool { return l.secret }

// Release ends the lease. Calling it again does nothing.
func (l *Lease) Release() { l.release() }

// Acquire leases the snapshot with the given tag. The first lease of a snapshot opens and checks
// the files. If the files are damaged, the error is a *DamagedError. If the snapshot has no memory,
// the error is a *DiskOnlyError.
func (s *Store) Acquire(tag string) (*Lease, error) { return s.acquire(tag, false) }

// AcquireFork is like Acquire, but also leases snapshots that are still arriving. Reads of their
// layers may wait for a network, see Lease.Arrival.
func (s *Store) AcquireFork(tag string) (*Lease, error) { return s.acquire(tag, true) }

func (s *Store) acquire(tag string, arriving bool) (*Lease, error) {
	l, err := s.acquireDisk(tag, arriving)
	if err == nil && l.manifest.DiskOnly() {
		l.Release()
		return nil, &DiskOnlyError{Tag: tag}
	}
	return l, err
}

// AcquireVersion is like AcquireFork. If the tag now names a snapshot with another ID, the error is
// a *ReplacedError. If an earlier daemon ended while the snapshot was arriving, it is a *TornError.
func (s *Store) AcquireVersion(tag, id string) (*Lease, error) {
	if s.torn[id] {
		return nil, &TornError{Tag: tag}
	}
	l, err := s.AcquireFork(tag)
	if err == nil && l.manifest.ID != id {
		l.Release()
		return nil, &ReplacedError{Tag: tag}
	}
	return l, err
}

// AcquireDisk is like Acquire, but also leases disk-only snapshots.
func (s *Store) AcquireDisk(tag string) (*Lease, error) { return s.acquireDisk(tag, false) }

// acquireDisk is like AcquireDisk. If arriving is set, it also leases snapshots that are still
// arriving.
func (s *Store) acquireDisk(tag string, arriving bool) (*Lease, error) {
	if err := snapshot.CheckTag(tag); err != nil {
		return nil, err
	}
	s.mu.Lock()
	e := s.byTag[tag]
	switch {
	case e == nil && s.reserved[tag] != nil:
		s.mu.Unlock()
		return nil, &ExistsError{Tag: tag, InFlight: true}
	case e == nil || !e.Listed():
		s.mu.Unlock()
		return nil, &NotFoundError{Tag: tag}
	case e.damage != nil:
		s.mu.Unlock()
		return nil, e.damage
	case e.Phase == phase.Arriving && !arriving:
		s.mu.Unlock()
		return nil, &ArrivingError{Tag: tag}
	}
	e.refs.lease++
	s.mu.Unlock()
	return s.lease(e, &e.refs.lease)
}

// lease returns a lease of e. The caller has already incremented *count, which is a field of
// e.refs.
func (s *Store) lease(e *entry, count *int) (*Lease, error) {
	release := s.releaser(e, count)
	hot, err := s.heat(e)
	if err != nil {
		release()
		return nil, err
	}
	return &Lease{hotFiles: hot, release: sync.OnceFunc(func() {
		s.trim(e, hot)
		release()
	})}, nil
}

// releaser returns a function that ends a lease of e and decrements *count.
func (s *Store) releaser(e *entry, count *int) (release func()) {
	return sync.OnceFunc(func() {
		s.mu.Lock()
		*count--
		// A transient snapshot that still has its name is not deleted when its last follower stops
		// following it.
		if e.IsUnnamed() || count == &e.refs.lease {
			s.dropTransientLocked(e)
		}
		victim := s.releasedLocked(e)
		if e.Phase == phase.Gone && e.refs.using() == 0 { // its arrival has failed
			victim = e
		}
		s.mu.Unlock()
		if victim != nil {
			s.closeIdle(victim)
		}
	})
}

// heat opens the files of a snapshot if they are not open. The caller must hold a lease.
func (s *Store) heat(e *entry) (*hotFiles, error) {
	e.hotMu.Lock()
	defer e.hotMu.Unlock()
	if e.hot != nil {
		return e.hot, nil
	}
	s.mu.Lock()
	m, dir, unflushed, secret := e.manifest, e.dir, e.InRAM(), len(e.keys) > 0
	s.mu.Unlock()
	h := &hotFiles{manifest: m, secret: secret}
	if err := s.openFiles(h, dir, unflushed); err != nil {
		h.close()
		return nil, err
	}
	h.secret = h.secret || h.state != nil && isDecrypted(h.state) // true even if the EncryptionFile is lost
	h.measureOwn()
	e.hot = h
	return h, nil
}

// cool closes the files of a snapshot without a lease.
func (e *entry) cool() {
	e.hotMu.Lock()
	defer e.hotMu.Unlock()
	e.closeHot()
}

// closeHot closes the files of e. Preconditions: e.hotMu is held.
func (e *entry) closeHot() {
	if e.hot != nil {
		e.hot.close()
		e.hot = nil
	}
	if e.arrived != nil {
		e.arrived.close()
		e.arrived = nil
	}
}

// close closes the files. It does not wait for a process that serves some of them, because callers
// hold locks.
func (h *hotFiles) close() {
	h.arrival.Apart(func() {
		for _, f := range slices.Concat([]*os.File{h.state}, h.layers, h.disk, slices.Concat(h.volumes...)) {
			_ = f.Close() // if f is nil, Close only returns an error
		}
	})
}

func (s *Store) openFiles(h *hotFiles, dir string, unflushed bool) error {
	m := h.manifest
	damaged := func(file string, err error) error { return &DamagedError{Tag: m.Tag, File: file, Err: err} }
	if !m.DiskOnly() {
		if err := s.openMemory(h, dir, unflushed); err != nil {
			return err
		}
	}
	if m.Disk == nil {
		return nil
	}
	base, err := s.openBase(m.Disk.Base)
	if err != nil {
		return damaged("base image "+m.Disk.Base.Digest, err)
	}
	h.disk = append(h.disk, base)
	for _, l := range m.Disk.Layers {
		name := snapshot.LayerFile(snapshot.DiskLayerFile, m.ID, l.Owner)
		f, err := s.openSized(filepath.Join(dir, name), l.Bytes)
		if err != nil {
			return damaged(name, err)
		}
		h.disk = append(h.disk, f)
	}
	return s.openVolumes(h, dir)
}

// openMemory opens the files that are needed to restore a machine.
func (s *Store) openMemory(h *hotFiles, dir string, unflushed bool) (err error) {
	m := h.manifest
	damaged := func(file string, err error) error { return &DamagedError{Tag: m.Tag, File: file, Err: err} }
	if h.state, err = s.openAlone(filepath.Join(dir, snapshot.StateFile), m.State.Bytes); err != nil {
		return damaged(snapshot.StateFile, err)
	}
	h.usual = make([]atomic.Uint64, len(m.Memory))
	for i, l := range m.Memory {
		f, usual, err := s.openLayer(dir, m, l, unflushed)
		if err != nil {
			return damaged(snapshot.MemoryLayerFile, err)
		}
		h.layers = append(h.layers, f)
		h.usual[i].Store(usual)
	}
	if h.extents, err = s.readMap(dir, m); err != nil {
		return damaged(snapshot.MemoryMapFile, err)
	}
	return nil
}

// readMap reads the memory map of a snapshot.
func (s *Store) readMap(dir string, m *snapshot.Manifest) ([]vm.Extent, error) {
	p, err := s.readBounded(filepath.Join(dir, snapshot.MemoryMapFile), int64(snapshot.MaxMemoryMap))
	if err != nil {
		return nil, err
	}
	if uint64(len(p)) != m.Map.Bytes {
		return nil, fmt.Errorf("%d bytes: the manifest says %d", len(p), m.Map.Bytes)
	}
	return snapshot.ParseMemoryMap(p, m.MemorySizes(), vm.RAMEnd(m.Machine.MemoryBytes))
}

// Room returns the free space of the store's disk, in bytes.
func (s *Store) Room() (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.root, &st); err != nil {
		return 0, fmt.Errorf("ask for the room in %s: %w", s.root, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}
