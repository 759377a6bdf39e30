package store

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/fileid"
	"github.com/forkd/forkd/internal/host/phase"
)

// Info is an entry in the list of snapshots.
type Info struct {
	Tag     string
	Dir     string
	Created time.Time
	Parent  string // tag of the snapshot that this snapshot was branched from; may be empty
	Damage  string // why the snapshot cannot be used; empty if it can
	Machine snapshot.Machine
	Guest   snapshot.Guest
	Base    snapshot.Base  // the disk's base image; see BaseImage
	Boot    *snapshot.Boot // must not be changed; nil: unknown
	Leases  int

	Writing   bool   // the snapshot is being made and cannot be used yet
	Arriving  bool   // the snapshot can be forked, but not all of its files are there
	Replacing bool   // another snapshot with the same tag is being made
	Step      string // step in making the snapshot or its replacement; empty if unknown
	Branch    *snapshot.Branch
	Transient bool
	DiskOnly  bool // the snapshot has no memory
	Encrypted bool // the files of the snapshot are encrypted
	// only for a branch made by this daemon: how long it was usable before it was on disk
	FlushedIn time.Duration
	InRAM     bool   // the snapshot is not on disk yet
	FlushErr  string // why the latest flush failed; until a flush succeeds, the snapshot is only in RAM
}

// ForAll reports whether every client may fork the snapshot. It must be called only for a snapshot
// that is not a branch. A client may not fork another client's step of a build, because the step's
// image may need a password.
func (i *Info) ForAll() bool { return !i.Transient && !snapshot.IsStepTag(i.Tag) }

// Detail holds everything the store knows about one snapshot. Sizes are in bytes.
type Detail struct {
	Info
	ID             string
	MemoryLogical  uint64 // bytes of guest RAM
	MemoryPhysical uint64 // bytes that the snapshot's own memory layer takes on disk
	DiskPhysical   uint64 // bytes that the snapshot's own disk layer takes on disk
	StateBytes     uint64
	ParentDigest   string         // digest of the parent's memory layer; empty until it is computed
	Ancestors      []string       // tags of the ancestors, root first
	Line           []snapshot.Ref // ancestors back to the snapshot of the booted VM, root first
	MemoryLayers   int
	DiskLayers     int
	Dependents     []string // snapshots that build directly on this snapshot
	Sealed         bool     // all digests are in the manifest
}

func (s *Store) infoLocked(e *entry) Info {
	info := Info{Tag: e.tag, Dir: e.dir, Created: e.created, Leases: e.refs.keeping(),
		InRAM: e.InRAM(), FlushedIn: e.flushTime, Arriving: e.Phase == phase.Arriving}
	if e.flushErr != nil {
		info.FlushErr = e.flushErr.Error()
	}
	if e.damage != nil {
		info.Damage = e.damage.Error()
	}
	if m := e.manifest; m != nil {
		info.Machine, info.Guest, info.Branch, info.Transient = m.Machine, m.Guest, m.Branch, m.Transient
		info.DiskOnly, info.Encrypted, info.Boot = m.DiskOnly(), len(e.keys) > 0, m.Boot
		if m.Parent != nil {
			info.Parent = m.Parent.Tag
		}
		if m.Disk != nil {
			info.Base = m.Disk.Base
		}
	}
	return info
}

// infoLocked returns the Info of a snapshot that is being made.
func (g *Staging) infoLocked() Info {
	return Info{Tag: g.tag, Dir: g.store.dir(g.tag), Created: g.since, Base: g.base, Writing: true, Step: g.step}
}

// List returns all snapshots, sorted by tag, including those that are being made.
func (s *Store) List() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Info, 0, len(s.byTag))
	for _, e := range s.byTag {
		if e.Listed() {
			info := s.infoLocked(e)
			info.Replacing = s.reserved[e.tag] != nil && !info.Arriving
			list = append(list, info)
		}
	}
	for _, g := range s.reserved {
		// A snapshot that is being replaced is listed instead of its replacement.
		if s.byTag[g.tag] == nil || !g.over && g.arriving == nil {
			list = append(list, g.infoLocked())
		}
	}
	slices.SortFunc(list, func(a, b Info) int {
		if a.Tag < b.Tag {
			return -1
		}
		return 1
	})
	return list
}

// Count returns the length of the result of List, without making the list.
func (s *Store) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, e := range s.byTag {
		if e.Listed() {
			n++
		}
	}
	for _, g := range s.reserved {
		if s.byTag[g.tag] == nil || !g.over && g.arriving == nil {
			n++
		}
	}
	return n
}

// Info returns the Info of the snapshot with the given tag. It is much faster than Detail.
func (s *Store) Info(tag string) (Info, error) {
	if err := snapshot.CheckTag(tag); err != nil {
		return Info{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, info, err := s.findLocked(tag)
	return info, err
}

// findLocked returns a snapshot and its Info. For a snapshot that is being made, the *entry is nil.
func (s *Store) findLocked(tag string) (*entry, Info, error) {
	e := s.byTag[tag]
	if g := s.reserved[tag]; e == nil && g != nil {
		return nil, g.infoLocked(), nil
	}
	if e == nil || !e.Listed() {
		return nil, Info{}, &NotFoundError{Tag: tag}
	}
	return e, s.infoLocked(e), nil
}

// Detail describes the snapshot with the given tag. If the snapshot is damaged, only Info is set.
func (s *Store) Detail(tag string) (Detail, error) {
	if err := snapshot.CheckTag(tag); err != nil {
		return Detail{}, err
	}
	d, files, err := s.detail(tag)
	if err == nil && d.ID != "" {
		d.MemoryPhysical, d.DiskPhysical = fileid.Blocks(files.memory), fileid.Blocks(files.disk)
	}
	return d, err
}

// detail is like Detail, but does not measure the space that the files take on disk. It returns the
// paths of these files instead.
func (s *Store) detail(tag string) (Detail, ownFiles, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var files ownFiles
	e, info, err := s.findLocked(tag)
	if err != nil || e == nil {
		return Detail{Info: info}, files, err
	}
	d := Detail{Info: info, Dependents: s.dependentsLocked(e)}
	m := e.manifest
	if m == nil {
		return d, files, nil
	}
	files = s.ownFilesLocked(e)
	d.ID, d.MemoryLogical, d.StateBytes, d.Sealed = m.ID, m.Machine.MemoryBytes, m.State.Bytes, m.Sealed()
	d.MemoryLayers = len(m.Memory)
	if m.Disk != nil {
		d.DiskLayers = len(m.Disk.Layers)
	}
	if n := len(m.Memory); n > 1 {
		d.ParentDigest = m.Memory[n-2].Digest
	}
	d.Ancestors, d.Line = s.ancestorsLocked(m)
	return d, files, nil
}

// ancestorsLocked returns the tags of the ancestors of a snapshot, and its line (see Detail.Line).
// Both begin with the root.
func (s *Store) ancestorsLocked(m *snapshot.Manifest) (tags []string, line []snapshot.Ref) {
	branched := m.Branch != nil
	for p := m.Parent; p != nil && len(tags) < snapshot.MaxChain; {
		tags = append(tags, p.Tag)
		if branched {
			line = append(line, *p)
		}
		above := s.byID[p.ID]
		if above == nil {
			break
		}
		branched = branched && above.manifest.Branch != nil
		p = above.manifest.Parent
	}
	slices.Reverse(tags)
	slices.Reverse(line)
	return tags, line
}

// Above returns the manifest of the snapshot with the given ID and the manifests of its ancestors,
// nearest first. It also reports whether all ancestors still exist.
func (s *Store) Above(id string) (list []*snapshot.Manifest, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range snapshot.MaxChain {
		e := s.byID[id]
		if e == nil || e.manifest == nil {
			return list, false
		}
		list = append(list, e.manifest)
		if e.manifest.Parent == nil {
			return list, true
		}
		id = e.manifest.Parent.ID
	}
	return list, false
}

// TagOf returns the tag of the snapshot with the given ID, or "" if no listed snapshot has the ID.
func (s *Store) TagOf(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byID[id]; e != nil && e.Listed() && s.byTag[e.tag] == e {
		return e.tag
	}
	return ""
}

// Root returns the ID of the booted snapshot from which the snapshot with the given ID descends by
// branches. A booted snapshot is its own root. Snapshots with the same root have VMs of the same
// shape. If no snapshot has the ID, Root returns id.
func (s *Store) Root(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range snapshot.MaxChain {
		e := s.byID[id]
		switch {
		case e == nil:
			return id
		case e.manifest.Root != "":
			return e.manifest.Root
		case e.manifest.Branch == nil || e.manifest.Parent == nil:
			return id
		}
		id = e.manifest.Parent.ID // a manifest of version 5 has no Root, so look at its ancestors as long as they exist
	}
	return id
}

// Has reports whether the tag names the snapshot with the given ID.
func (s *Store) Has(tag, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byTag[tag]
	return e != nil && e.Listed() && e.id() == id
}

// IsInLine reports whether the tag names the snapshot with the given ID, or a snapshot in its line
// (see Detail). It reads no files.
func (s *Store) IsInLine(tag, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	named := s.byTag[tag]
	if named == nil || !named.Listed() || named.manifest == nil {
		return false
	}
	var line []snapshot.Ref
	if e := s.byID[id]; e != nil {
		_, line = s.ancestorsLocked(e.manifest)
	}
	return named.id() == id || slices.Contains(line, snapshot.Ref{ID: named.id(), Tag: tag})
}

// ownFiles are the paths of a snapshot's own layers.
type ownFiles struct{ memory, disk string }

// ownFilesLocked returns the paths of e's own layers. If the memory layer is only in RAM, the
// result has its path in RAM.
func (s *Store) ownFilesLocked(e *entry) ownFiles {
	files := ownFiles{filepath.Join(e.dir, snapshot.MemoryLayerFile), filepath.Join(e.dir, snapshot.DiskLayerFile)}
	if e.InRAM() {
		files.memory = s.ramLayer(e.manifest.ID)
	}
	return files
}

// BaseImage returns the path that an image had when a snapshot was last baked from it, or "" if the
// path is unknown. The image must stay at that path if the store has no link to it.
func (s *Store) BaseImage(base snapshot.Base) string {
	if base.Digest == "" {
		return ""
	}
	rec, err := s.readBase(base.Digest)
	if err != nil {
		return ""
	}
	return rec.Path
}
