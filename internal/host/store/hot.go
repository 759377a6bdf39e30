package store

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/fileid"
	"github.com/forkd/forkd/internal/host/hardlink"
	"github.com/forkd/forkd/internal/host/phase"
	"github.com/forkd/forkd/internal/host/sparse"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Publish completes the snapshot and makes it visible. It sets the snapshot's identity in m, and
// adds the snapshot's own files with their lengths to m. The snapshot can be forked as soon as
// Publish returns. If DurableFirst was not called, the flusher writes it to disk later. Digests of
// layers are computed in the background.
//
// The caller sets the other fields of m: the machine, the guest, and the disk. For a branch the
// caller also sets the parent and the inherited memory layers. The caller lists in m.Disk all
// layers except the last layer. The caller sets the base and the boot files only if UseBase and
// UseBoot were not called. The last parameter has the open files of all disk layers, including the
// last layer. The files must be on the store's file system, because Publish makes links to them in
// the snapshot's own directory. Thus the snapshot does not depend on the directories of other
// snapshots. If m has volumes, LinkVolumes must have been called.
func (g *Staging) Publish(m *snapshot.Manifest, extents []vm.Extent, disk []*os.File) (Info, error) {
	g.store.mu.Lock()
	hurries := g.store.hurriesLocked(m, g.lift)
	g.store.mu.Unlock()
	calm := liftAll(hurries)
	info, err := g.publish(m, extents, disk, hurries, calm)
	if err != nil {
		calm()
	}
	return info, err
}

// publish does the work of Publish while the disk limits are lifted. After a successful publish,
// the flusher calls calm to restore the limits.
func (g *Staging) publish(m *snapshot.Manifest, extents []vm.Extent, disk []*os.File, hurries []hurry, calm func()) (
	Info, error) {
	if err := g.complete(m, extents, disk); err != nil {
		return Info{}, fmt.Errorf("publish snapshot %q: %w", g.tag, err)
	}
	s := g.store
	if g.over || g.first {
		if err := s.persist(g.dir, m, g.secret != nil); err != nil { // before the deletion of the old snapshot
			return Info{}, fmt.Errorf("publish snapshot %q: %w", g.tag, err)
		}
	}
	if g.over {
		var none *NotFoundError
		var onlyThis *ExistsError // the old snapshot may already be gone, which is no error
		if _, err := s.Delete(g.tag, DeleteForce); err != nil && !errors.As(err, &none) && !errors.As(err, &onlyThis) {
			return Info{}, fmt.Errorf("replace snapshot %q: %w", g.tag, err)
		}
	}
	if g.arriving != nil {
		return g.publishArrived(m, calm)
	}
	s.mu.Lock()
	delete(s.reserved, g.tag)
	e := &entry{tag: g.tag, dir: g.dir, manifest: m, created: m.Created, flushed: make(chan struct{}),
		keys: g.keys, published: time.Now(), owner: g.owner, awaited: g.awaited, hurries: hurries, calm: []func(){calm}}
	e.EnterLocked(phase.Hot)
	if old := s.byTag[g.tag]; old != nil {
		old.EnterLocked(phase.Gone) // the old snapshot was only listed as failed
	}
	s.addLocked(e)
	s.tell(event.SnapshotCreated, e)
	info := s.infoLocked(e)
	s.mu.Unlock()
	g.done = true
	if !g.first {
		s.flusher.Add(e)
		return info, nil
	}
	s.flushNow(e) // only a rename remains to be done; if it fails, the flusher tries again
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.infoLocked(e), nil
}

// complete completes m and writes the files that are missing in the staging directory.
func (g *Staging) complete(m *snapshot.Manifest, extents []vm.Extent, disk []*os.File) error {
	if err := g.useBases(m); err != nil {
		return err
	}
	m.ID, m.Tag, m.Created = g.id, g.tag, time.Now().UTC()
	if !g.diskOnly {
		if err := g.completeMemory(m, extents); err != nil {
			return err
		}
	}
	if m.Disk != nil {
		if err := g.linkDisk(m, disk); err != nil {
			return err
		}
	}
	if g.secret != nil { // before the manifest, so that the next daemon takes over only complete files
		if err := g.encryptMemory(); err != nil {
			return err
		}
	}
	p, err := m.Encode()
	if err != nil {
		return err
	}
	// Until the snapshot is flushed, it needs the layer in RAM. A crash of the host destroys that
	// layer anyway, so the manifest is not synced yet.
	return g.store.Essential(func() error { return os.WriteFile(g.Path(snapshot.ManifestFile), p, 0o600) })
}

// completeMemory does the part of complete that concerns the memory files.
func (g *Staging) completeMemory(m *snapshot.Manifest, extents []vm.Extent) error {
	st, err := os.Stat(g.store.ramLayer(g.id))
	if err != nil {
		return err
	}
	if err := g.linkMemory(m); err != nil {
		return err
	}
	m.Memory = append(m.Memory, snapshot.File{Owner: g.id, Bytes: uint64(st.Size())})
	p, err := encodeMap(m, extents)
	if err != nil {
		return err
	}
	err = g.store.Essential(func() error { return os.WriteFile(g.Path(snapshot.MemoryMapFile), p, 0o600) })
	if err != nil {
		return err
	}
	if m.State, err = g.describe(snapshot.StateFile); err != nil {
		return err
	}
	m.Map, err = g.describe(snapshot.MemoryMapFile)
	return err
}

// linkMemory gives the snapshot its own links to inherited memory layers that are on disk. If RAM
// is short, these layers may be only on disk. Without the links, these layers could be deleted
// together with the snapshots that have them, before this snapshot is flushed.
func (g *Staging) linkMemory(m *snapshot.Manifest) error {
	for _, l := range m.Memory {
		if g.secret != nil {
			if err := g.place(snapshot.MemoryLayerFile, m.Parent.ID, l.Owner, nil); err != nil {
				return err
			}
			continue
		}
		if _, err := os.Lstat(layerPath(g.dir, m, l.Owner)); err == nil { // Import has already put the layer there
			continue
		}
		if _, err := g.store.linkLayer(m, g.below, l.Owner, g.dir); err != nil {
			return err
		}
	}
	return nil
}

// describe returns the manifest's entry for a file that belongs to the snapshot itself.
func (g *Staging) describe(name string) (snapshot.File, error) {
	st, err := os.Stat(g.Path(name))
	if err != nil {
		return snapshot.File{}, err
	}
	return snapshot.File{Owner: g.id, Bytes: uint64(st.Size())}, nil
}

// linkDisk gives the snapshot its own links to all disk layers.
func (g *Staging) linkDisk(m *snapshot.Manifest, files []*os.File) error {
	d := m.Disk
	if len(files) != len(d.Layers)+1 {
		return fmt.Errorf("%d disk layers described, %d files", len(d.Layers)+1, len(files))
	}
	st, err := files[len(files)-1].Stat()
	if err != nil {
		return err
	}
	d.Layers = append(d.Layers, snapshot.File{Owner: g.id, Bytes: uint64(st.Size())})
	for i, l := range d.Layers {
		if g.secret != nil {
			err = g.place(snapshot.DiskLayerFile, cmp.Or(m.Parent, &snapshot.Ref{}).ID, l.Owner, files[i])
		} else {
			err = hardlink.File(files[i], g.Path(snapshot.LayerFile(snapshot.DiskLayerFile, g.id, l.Owner)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// flush makes a hot snapshot durable and moves it to its directory. It does nothing if a deletion
// of the snapshot has begun.
func (s *Store) flush(e *entry) error {
	e.flushMu.Lock() // a deletion waits for this lock
	defer e.flushMu.Unlock()
	s.mu.Lock()
	listed, m, dir, secret := e.Listed(), e.manifest, e.dir, len(e.keys) > 0
	s.mu.Unlock()
	if !listed {
		return nil
	}
	if err := s.persist(dir, m, secret); err != nil {
		return err
	}
	e.hotMu.Lock() // calls that open the snapshot's files also take this lock
	defer e.hotMu.Unlock()
	if err := s.moveIn(e); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(s.snapshots()); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(s.dir(e.tag), wholeFile)) // wholeFile is needed only in the staging directory
	s.mu.Lock()
	defer s.mu.Unlock()
	e.EnterLocked(phase.Stored)
	return nil
}

// wholeFile is the name of an empty file in the staging directory of a disk-only or encrypted
// snapshot. It says that all other files of the snapshot are on disk. It is removed when the
// snapshot has been moved to its own directory.
const wholeFile = ".whole"

// persist flushes all files of a hot snapshot in dir to disk. It flushes the snapshot's own memory
// layer last: if the layer is on disk under its name, all other files are complete. reload relies
// on that. A disk-only or encrypted snapshot has wholeFile for the same purpose. The encrypted files
// are already on disk.
func (s *Store) persist(dir string, m *snapshot.Manifest, secret bool) error {
	if secret {
		err := errors.Join(atomicfile.SyncFile(filepath.Join(dir, snapshot.ManifestFile)), atomicfile.SyncDir(dir),
			atomicfile.SyncDir(s.staging()))
		if err != nil {
			return err
		}
		return s.markWhole(dir)
	}
	names := []string{snapshot.ManifestFile}
	if !m.DiskOnly() {
		names = append(names, snapshot.StateFile, snapshot.MemoryMapFile)
	}
	if m.Disk != nil {
		for _, l := range m.Disk.Layers {
			names = append(names, snapshot.LayerFile(snapshot.DiskLayerFile, m.ID, l.Owner))
		}
	}
	for _, f := range m.VolumeFiles() {
		names = append(names, volumeFile(m.ID, f))
	}
	for _, name := range names {
		if err := atomicfile.SyncFile(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, l := range m.Memory {
		if l.Owner == m.ID {
			if err := atomicfile.SyncDir(dir); err != nil {
				return err
			}
		}
		if err := s.flushLayer(dir, m, l); err != nil {
			return err
		}
	}
	if err := errors.Join(atomicfile.SyncDir(dir), atomicfile.SyncDir(s.staging())); err != nil || !m.DiskOnly() {
		return err
	}
	return s.markWhole(dir)
}

func (s *Store) markWhole(dir string) error {
	return s.Essential(func() error { return atomicfile.WriteDurable(filepath.Join(dir, wholeFile), nil, 0o600) })
}

// moveIn moves a flushed snapshot to its directory.
func (s *Store) moveIn(e *entry) error {
	s.moves.Lock()
	defer s.moves.Unlock()
	if err := os.Rename(e.dir, s.dir(e.tag)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.dir = s.dir(e.tag)
	return nil
}

// flushLayer makes one memory layer appear in dir. If another snapshot has the layer on disk,
// flushLayer makes a link. Otherwise it copies the layer from RAM.
func (s *Store) flushLayer(dir string, m *snapshot.Manifest, l snapshot.File) error {
	to := layerPath(dir, m, l.Owner)
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	if l.Owner != m.ID {
		if linked, err := s.linkLayer(m, "", l.Owner, dir); linked && err == nil {
			return nil
		}
	}
	hot, err := s.openHot(l)
	if err != nil {
		return fmt.Errorf("memory layer in RAM: %w", err)
	}
	defer hot.Close()
	// Check before the copy, because a copy that fills the disk would take the space that running
	// sandboxes need.
	room, err := s.Room()
	if err != nil {
		return err
	}
	if need := fileid.Blocks(s.ramLayer(l.Owner)); need > room {
		return fmt.Errorf("memory layer of %d MiB, %d MiB are left: %w", need>>20, room>>20, unix.ENOSPC)
	}
	parts, err := s.ownParts(dir, m, l)
	if err != nil {
		return err
	}
	return atomicfile.Fill(to, func(tmp string) error {
		if err := sparse.CopyParts(tmp, hot, parts); err != nil {
			return err
		}
		disk, err := os.Open(tmp)
		if err != nil {
			return err
		}
		defer disk.Close()
		if err := disk.Sync(); err != nil {
			return err
		}
		// Record the origin before the rename, so that any code that finds the file also finds its
		// origin.
		return setOrigin(s.layerDir(l.Owner), disk)
	})
}

// ownParts returns the parts of the snapshot's own layer that hold data, according to the extents
// in the memory map. For any other layer it returns nil. The extents are needed because a VMM may
// have filled holes of the layer in RAM (see trim). On disk, the layer must have these holes again.
func (s *Store) ownParts(dir string, m *snapshot.Manifest, l snapshot.File) ([]sparse.Part, error) {
	if l.Owner != m.ID {
		return nil, nil
	}
	extents, err := s.readMap(dir, m)
	if err != nil {
		return nil, err
	}
	parts := []sparse.Part{}
	for _, e := range sparse.Over(extents, len(m.Memory)-1) {
		parts = append(parts, sparse.Part{Start: int64(e.Offset), End: int64(e.Offset + e.Length)})
	}
	return parts, nil
}

// reload takes over a hot snapshot that an earlier daemon has not flushed. This is possible if each
// memory layer is still in RAM or is on disk. The snapshot's own layer is on disk only if all other
// files are also on disk, see persist. If layers are lost, and the snapshot was not transient, it
// is listed as failed. A disk-only or encrypted snapshot is taken over if it has wholeFile. Without
// wholeFile, it was never published.
func (s *Store) reload(name string) bool {
	dir := filepath.Join(s.staging(), name)
	if isTorn(dir) {
		s.torn[name] = true
		return false
	}
	m, err := s.readManifest(filepath.Join(dir, snapshot.ManifestFile))
	if err != nil || m.ID != name || s.byTag[m.Tag] != nil {
		return false
	}
	keys, err := s.keysIn(dir, m.ID)
	secret := len(keys) > 0
	if _, missing := os.Lstat(filepath.Join(dir, wholeFile)); err != nil || missing != nil && (secret || m.DiskOnly()) {
		return false
	}
	layers := m.Memory
	if secret { // the layers are on disk
		layers = nil
	}
	for _, l := range layers {
		f, err := s.openHot(l)
		if err != nil {
			f, err = s.openSized(layerPath(dir, m, l.Owner), l.Bytes)
		}
		if err == nil {
			f.Close()
			continue
		}
		if l.Owner != m.ID && s.findLayer(m, "", l.Owner) != "" {
			continue
		}
		if !m.Transient {
			s.ListFailed(m.Tag, "", errors.New("was in RAM only when the host or its daemon went down, and is lost"))
		}
		return false
	}
	e := &entry{tag: m.Tag, dir: dir, manifest: m, keys: keys, created: m.Created, flushed: make(chan struct{})}
	e.EnterLocked(phase.Hot)
	s.addLocked(e)
	return true
}
