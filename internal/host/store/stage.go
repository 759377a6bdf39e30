package store

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/phase"
	"github.com/forkd/forkd/internal/host/vault"
	"github.com/forkd/forkd/internal/host/writers"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Staging is a snapshot that is being made. Publish or Discard ends it; after Publish, Discard does
// nothing. Only one goroutine may use it.
type Staging struct {
	store *Store
	tag   string
	id    string
	dir   string
	since time.Time
	done  bool
	over  bool // see StageOver
	first bool // see DurableFirst

	owner    string      // see For
	awaited  bool        // see Awaited
	diskOnly bool        // see PublishDisk
	secret   *vault.Seal // nil unless Encrypt was called
	keys     []string    // keys of the snapshot's files; empty unless Encrypt was called
	lift     hurry       // see Hurry; may be nil

	below    string  // see Inherit
	basing   *basing // nil unless UseBase is called
	kernel   *basing // kernel and initrd are nil unless UseBoot is called
	initrd   *basing
	bases    []string  // digests of the files that the store must keep for the snapshot; guarded by store.mu
	arriving *arriving // nil unless Arrive was called
	step     string    // present step in making the snapshot; guarded by store.mu

	base snapshot.Base // the disk's base image, if it is known and in the store; guarded by store.mu
}

// Stage reserves the tag and makes an empty staging directory. If a snapshot has the tag, the error
// is an *ExistsError.
func (s *Store) Stage(tag string) (*Staging, error) { return s.stage(tag, false) }

// StageOver is like Stage, but the new snapshot replaces a snapshot with the same tag. When the new
// snapshot is complete and on disk, Publish deletes the old snapshot as Delete with DeleteForce
// does. If that deletion would fail at present, the error is an *InUseError.
func (s *Store) StageOver(tag string) (*Staging, error) { return s.stage(tag, true) }

func (s *Store) stage(tag string, over bool) (*Staging, error) {
	if err := snapshot.CheckTag(tag); err != nil {
		return nil, err
	}
	s.left.Retry()
	if !s.ramIsWide() {
		s.drops.Go(s.coolUnused)
	}
	g := &Staging{store: s, tag: tag, id: snapshot.NewID(), since: time.Now().UTC(), over: over}
	g.dir = filepath.Join(s.staging(), g.id)
	if err := s.reserveTag(g); err != nil {
		return nil, err
	}
	for _, dir := range []string{g.dir, s.layerDir(g.id)} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			g.Discard()
			return nil, fmt.Errorf("stage snapshot %q: %w", tag, err)
		}
	}
	return g, nil
}

// reserveTag reserves the tag of g.
func (s *Store) reserveTag(g *Staging) error {
	tag, over := g.tag, g.over
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reserved[tag] != nil {
		return &ExistsError{Tag: tag, InFlight: true}
	}
	if e := s.byTag[tag]; e != nil && e.Phase != phase.Failed && !over {
		return &ExistsError{Tag: tag}
	} else if e != nil && over {
		if err := e.usedLocked(); err != nil {
			return fmt.Errorf("replace snapshot %q: %w", tag, err)
		}
	}
	s.reserved[tag] = g
	return nil
}

// ID returns the ID that the snapshot will have.
func (g *Staging) ID() string { return g.id }

// SetStep sets the step that Info reports while the snapshot is being made.
func (g *Staging) SetStep(step string) {
	g.store.mu.Lock()
	g.step = step
	g.store.mu.Unlock()
}

// For sets the owner of the snapshot. The flusher lets owners take turns. If the snapshot is a
// branch, the given lease belongs to its parent, and the branch gets the base image of the parent.
// If the snapshot is not a branch, the lease is nil.
func (g *Staging) For(owner string, from *Lease) {
	g.owner = owner
	if from != nil && from.Manifest().Disk != nil {
		g.setBase(from.Manifest().Disk.Base)
	}
}

func (g *Staging) setBase(base snapshot.Base) {
	g.store.mu.Lock()
	g.base = base
	g.store.mu.Unlock()
}

// Awaited is called if a stopped sandbox waits until the snapshot is on disk. The flush of such a
// snapshot does not wait for snapshots that no sandbox waits for.
func (g *Staging) Awaited() { g.awaited = true }

// DurableFirst tells Publish to flush the snapshot to disk before the snapshot becomes visible.
func (g *Staging) DurableFirst() { g.first = true }

// Inherit is called if the snapshot inherits the memory layers of a leased snapshot that is not its
// parent.
func (g *Staging) Inherit(from *Lease) { g.below = from.Manifest().ID }

// Path returns the path for a file of the snapshot. For the memory layer use Create.
func (g *Staging) Path(name string) string {
	if g.secret != nil && name != snapshot.ManifestFile {
		return filepath.Join(g.store.layerDir(g.id), name)
	}
	return filepath.Join(g.dir, name)
}

// Create creates a file of the snapshot, open for reading and writing. A memory layer is created on
// the RAM file system. The flush copies it to disk.
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

// encodeMap returns the content of memory.map. The manifest m must list all memory layers.
func encodeMap(m *snapshot.Manifest, extents []vm.Extent) ([]byte, error) {
	return snapshot.EncodeMemoryMap(extents, m.MemorySizes(), vm.RAMEnd(m.Machine.MemoryBytes))
}

// Discard removes all files of a snapshot that was not published, and frees its tag.
func (g *Staging) Discard() {
	if g.done {
		return
	}
	g.done = true
	based := g.stopBasing()
	g.remove()
	g.store.mu.Lock()
	based = based || len(g.bases) > 0
	delete(g.store.reserved, g.tag)
	g.store.mu.Unlock()
	if g.secret != nil {
		_ = g.store.ForgetKey(g.secret.KeyID) // after an error, the key stays, but no file is encrypted with it
	}
	if based {
		_ = g.store.dropBases() // after an error, the next deletion or start tries again
	}
}

// remove removes the files of the snapshot. A VMM that does not answer may still have some of them
// open for writing. The store removes these files later. If a crash interrupts the removal, the
// next daemon must not take over the remaining files, so the manifest is removed first.
func (g *Staging) remove() {
	_ = os.Remove(g.Path(snapshot.ManifestFile)) // it may be missing
	for _, dir := range []string{g.dir, g.store.layerDir(g.id)} {
		_ = g.store.left.Remove(dir, writers.Patience) // after an error, the next start tries again
	}
}
