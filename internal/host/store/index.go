package store

import (
	"slices"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/phase"
)

// index finds snapshots by their names, and by what they share, so that neither a deletion nor a
// branch has to look at every snapshot of the store. It is guarded by Store.mu.
type index struct {
	byTag   map[string]*entry
	byID    map[string]*entry // snapshots with a manifest, by ID
	damaged map[*entry]bool   // snapshots without a manifest, except failed branches

	memory   map[string][]*entry // snapshots that have a memory layer, by the owner of the layer
	disk     map[string][]*entry // snapshots that have a disk layer, by the owner of the layer
	volumes  map[string][]*entry // snapshots that have a file of a volume, by the owner of the file
	children map[string][]*entry // snapshots that were branched from sandboxes of a snapshot, by that snapshot's ID
	based    map[string][]*entry // snapshots that name the file of a base, by the file's hexOf(digest)
	parts    map[string][]*entry // snapshots that are not encrypted and have an artifact.Part, by the part's digest
}

func newIndex() index {
	lists := func() map[string][]*entry { return make(map[string][]*entry) }
	return index{byTag: make(map[string]*entry), byID: make(map[string]*entry), damaged: make(map[*entry]bool),
		memory: lists(), disk: lists(), volumes: lists(), children: lists(), based: lists(), parts: lists()}
}

// addLocked adds an entry. If several entries have the same ID, byID has the entry that was added
// first. An earlier entry with the same tag is dropped.
func (x *index) addLocked(e *entry) {
	if old := x.byTag[e.tag]; old != nil {
		x.dropLocked(old)
	}
	x.byTag[e.tag] = e
	switch {
	case e.manifest == nil && e.Phase != phase.Failed:
		x.damaged[e] = true
	case e.manifest != nil && x.byID[e.manifest.ID] == nil:
		x.byID[e.manifest.ID] = e
	}
	x.eachList(e, func(lists map[string][]*entry, key string) { lists[key] = append(lists[key], e) })
}

// dropLocked removes an entry. An entry that is not in the index is ignored.
func (x *index) dropLocked(e *entry) {
	if x.byTag[e.tag] != e {
		return
	}
	delete(x.byTag, e.tag)
	delete(x.damaged, e)
	if x.byID[e.id()] == e {
		delete(x.byID, e.id())
	}
	x.eachList(e, func(lists map[string][]*entry, key string) {
		list := lists[key]
		i, last := slices.Index(list, e), len(list)-1
		list[i], list[last] = list[last], nil // the order of a list has no meaning
		if lists[key] = list[:last]; last == 0 {
			delete(lists, key)
		}
	})
}

// eachList calls f for each list that has the entry. If a list has the entry twice, f is called
// twice.
func (x *index) eachList(e *entry, f func(lists map[string][]*entry, key string)) {
	m := e.manifest
	if m == nil {
		return
	}
	for _, l := range m.Memory {
		f(x.memory, l.Owner)
	}
	for _, l := range m.DiskLayers() {
		f(x.disk, l.Owner)
	}
	for _, l := range m.VolumeFiles() {
		f(x.volumes, l.Owner)
	}
	if m.Parent != nil {
		f(x.children, m.Parent.ID)
	}
	for _, base := range m.Bases() {
		f(x.based, hexOf(base.Digest))
	}
	for _, p := range artifact.Parts(m) {
		if p.Digest != "" && len(e.keys) == 0 {
			f(x.parts, p.Digest)
		}
	}
}

// setManifestLocked replaces the manifest of an entry that is in the index.
func (x *index) setManifestLocked(e *entry, m *snapshot.Manifest) {
	x.dropLocked(e)
	e.manifest = m
	x.addLocked(e)
}

// refs counts the references that keep an entry.
type refs struct {
	lease  int // number of leases, which keep the files open and prevent a deletion
	pin    int // number of suspended sandboxes, which prevent a deletion but do not keep the files open
	follow int // number of followers, which keep the files but let the snapshot lose its name, see Follow
}

// keeping returns the number of references that prevent the deletion of the snapshot.
func (r *refs) keeping() int { return r.lease + r.pin }

// using returns the number of references that need the snapshot's files.
func (r *refs) using() int { return r.lease + r.follow }
