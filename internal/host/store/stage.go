package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Staging is a snapshot being made. Exactly one of Publish and Discard ends it; Discard after
// Publish does nothing. It is used by one goroutine.
type Staging struct {
	store *Store
	tag   string
	id    string
	dir   string
	since time.Time
	done  bool
	over  bool // see StageOver

	below  string  // see Inherit
	basing *basing // nil without UseBase
	base   string  // digest of the base image that is kept for it; guarded by store.mu
	step   string  // what is being done, in words; guarded by store.mu
}

// Stage reserves tag and makes an empty staging directory. It fails with an *ExistsError if the tag
// is taken.
func (s *Store) Stage(tag string) (*Staging, error) { return s.stage(tag, false) }

// StageOver is Stage for a snapshot that takes the place of one with its tag, if there is one:
// PublishHot deletes that as Delete does with DeleteForce, when the new one is complete and on
// disk. It fails with an *InUseError if that would fail now.
func (s *Store) StageOver(tag string) (*Staging, error) { return s.stage(tag, true) }

func (s *Store) stage(tag string, over bool) (*Staging, error) {
	if err := snapshot.CheckTag(tag); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reserved[tag] != nil {
		return nil, &ExistsError{Tag: tag, InFlight: true}
	}
	if e := s.byTag[tag]; e != nil && !e.phantom && !over {
		return nil, &ExistsError{Tag: tag}
	} else if e != nil && over {
		if err := e.usedLocked(); err != nil {
			return nil, fmt.Errorf("replace snapshot %q: %w", tag, err)
		}
	}
	g := &Staging{store: s, tag: tag, id: snapshot.NewID(), since: time.Now().UTC(), over: over}
	g.dir = filepath.Join(s.staging(), g.id)
	for _, dir := range []string{g.dir, s.layerDir(g.id)} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			g.remove()
			return nil, fmt.Errorf("stage snapshot %q: %w", tag, err)
		}
	}
	s.reserved[tag] = g
	return g, nil
}

// ID returns the identifier the snapshot will have.
func (g *Staging) ID() string { return g.id }

// SetStep says what is being done, for those who ask for the snapshot meanwhile; see Info.
func (g *Staging) SetStep(step string) {
	g.store.mu.Lock()
	g.step = step
	g.store.mu.Unlock()
}

// Inherit says that the inherited memory layers are those of a leased snapshot, where that is not
// the parent.
func (g *Staging) Inherit(from *Lease) { g.below = from.Manifest().ID }

// Path returns where to put a file of the snapshot other than its memory layer, see Memory.
func (g *Staging) Path(name string) string { return filepath.Join(g.dir, name) }

// Create makes the empty file name of the snapshot, open for reading and writing. The memory layer
// is created on the RAM file system and flushed to disk by Publish.
func (g *Staging) Create(name string) (*os.File, error) {
	path := g.Path(name)
	if name == snapshot.MemoryLayerFile {
		path = g.store.ramLayer(g.id)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("stage snapshot %q: %w", g.tag, err)
	}
	return f, nil
}

// Publish completes the snapshot: it fills in m's identity, own files and their lengths, flushes
// everything to disk, and makes the snapshot visible under its tag in one step. m must have the
// machine, the guest, and the disk if there is a disk layer, with its base unless that was given to
// UseBase. Digests of layers follow in the background.
func (g *Staging) Publish(m *snapshot.Manifest, extents []vm.Extent) (Info, error) {
	if err := g.publish(m, extents); err != nil {
		return Info{}, fmt.Errorf("publish snapshot %q: %w", g.tag, err)
	}
	s := g.store
	s.mu.Lock()
	delete(s.reserved, g.tag)
	e := &entry{tag: g.tag, dir: s.dir(g.tag), manifest: m, created: m.Created}
	s.byTag[g.tag] = e
	s.tell(event.SnapshotCreated, e)
	info := s.infoLocked(e)
	s.mu.Unlock()
	g.done = true
	s.sealer.add(g.tag)
	return info, nil
}

func (g *Staging) publish(m *snapshot.Manifest, extents []vm.Extent) error {
	if len(m.Memory) > 0 {
		return errors.New("a snapshot with inherited layers is published hot")
	}
	if err := g.flushMemory(); err != nil {
		return err
	}
	if g.basing != nil && m.Disk != nil {
		<-g.basing.done
		if g.basing.err != nil {
			return g.basing.err
		}
		m.Disk.Base = g.basing.base
	}
	layer, err := g.own(snapshot.MemoryLayerFile)
	if err != nil {
		return err
	}
	m.Memory = append(m.Memory, layer)
	p, err := encodeMap(m, extents)
	if err != nil {
		return err
	}
	if err := writeSynced(g.Path(snapshot.MemoryMapFile), p); err != nil {
		return err
	}
	m.ID, m.Tag, m.Created = g.id, g.tag, time.Now().UTC()
	if m.State, err = g.own(snapshot.StateFile); err != nil {
		return err
	}
	if m.Map, err = g.own(snapshot.MemoryMapFile); err != nil {
		return err
	}
	if m.Disk != nil {
		if layer, err = g.own(snapshot.DiskLayerFile); err != nil {
			return err
		}
		m.Disk.Layers = append(m.Disk.Layers, layer)
	}
	if p, err = m.Encode(); err != nil {
		return err
	}
	if err := g.store.essential(func() error { return writeSynced(g.Path(snapshot.ManifestFile), p) }); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(g.dir); err != nil {
		return err
	}
	if err := os.Rename(g.dir, g.store.dir(g.tag)); err != nil {
		return err
	}
	return atomicfile.SyncDir(g.store.snapshots())
}

// encodeMap returns the memory.map of a snapshot that has all its memory layers.
func encodeMap(m *snapshot.Manifest, extents []vm.Extent) ([]byte, error) {
	return snapshot.EncodeMemoryMap(extents, layerSizes(m), vm.RAMEnd(m.Machine.MemoryBytes))
}

// layerSizes returns the lengths of the memory layers of a snapshot.
func layerSizes(m *snapshot.Manifest) []uint64 {
	sizes := make([]uint64, len(m.Memory))
	for i, l := range m.Memory {
		sizes[i] = l.Bytes
	}
	return sizes
}

// flushMemory copies the memory layer to disk, where own then flushes it.
func (g *Staging) flushMemory() error {
	hot, err := os.Open(g.store.ramLayer(g.id))
	if err != nil {
		return err
	}
	defer hot.Close()
	to := g.Path(snapshot.MemoryLayerFile)
	if err := copyFile(to, hot); err != nil {
		return err
	}
	disk, err := os.Open(to)
	if err != nil {
		return err
	}
	defer disk.Close()
	return setOrigin(g.store.layerDir(g.id), disk)
}

// own flushes one of the snapshot's files and describes it.
func (g *Staging) own(name string) (snapshot.File, error) {
	f, err := os.Open(g.Path(name))
	if err != nil {
		return snapshot.File{}, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return snapshot.File{}, fmt.Errorf("flush %s: %w", name, err)
	}
	st, err := f.Stat()
	if err != nil {
		return snapshot.File{}, err
	}
	return snapshot.File{Owner: g.id, Bytes: uint64(st.Size())}, nil
}

// Discard removes everything of an unpublished snapshot and frees its tag.
func (g *Staging) Discard() {
	if g.done {
		return
	}
	g.done = true
	if g.basing != nil {
		g.basing.cancel()
		<-g.basing.done
	}
	g.remove()
	g.store.mu.Lock()
	delete(g.store.reserved, g.tag)
	g.store.mu.Unlock()
	if g.basing != nil {
		_ = g.store.dropBases() // the next deletion, or the next start, tries again
	}
}

func (g *Staging) remove() {
	os.RemoveAll(g.dir)
	os.RemoveAll(g.store.layerDir(g.id))
}

func writeSynced(path string, p []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	return errors.Join(err, f.Sync(), f.Close())
}
