package store

import (
	"cmp"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// coolUnused keeps 1/ramPart of the RAM file system free for later branches.
const ramPart = 4

// statRAM returns the free bytes and the size of the RAM file system.
func (s *Store) statRAM() (free, all uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.ram, &st); err != nil {
		return 0, 0, err
	}
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), nil
}

// coldLayer is a memory layer in RAM that can be dropped: all snapshots that have the layer are on
// disk, and none of them is in use.
type coldLayer struct {
	owner string
	used  time.Time // latest use of one of its snapshots
	of    []*entry
}

// coolUnused drops unused layers from RAM, least recently used first, until 1/ramPart of the file
// system is free. It then stops, because otherwise one client's branches could keep the layers of
// all other clients out of RAM. The next fork of a snapshot reads its layers back into RAM.
func (s *Store) coolUnused() { s.coolUntil(0) }

// coolUntil is like coolUnused, but continues until at least the given number of bytes is free. It
// reports whether it has dropped a layer.
func (s *Store) coolUntil(bytes uint64) (freed bool) {
	if s.ramHas(bytes) || !s.cooling.CompareAndSwap(false, true) {
		return false
	}
	defer s.cooling.Store(false)
	for _, l := range s.coldLayers() {
		for _, e := range l.of {
			s.closeIdle(e) // while the files are open, the layer keeps its memory
		}
		s.dropCold(l.owner)
		if freed = true; s.ramHas(bytes) {
			break
		}
	}
	return freed
}

func (s *Store) ramIsWide() bool { return s.ramHas(0) }

// ramHas reports whether the RAM file system has the given number of bytes free, in addition to the
// part that is kept for later branches.
func (s *Store) ramHas(bytes uint64) bool {
	free, all, err := s.ramRoom()
	return err != nil || free >= max(bytes, all/ramPart)
}

// coldLayers returns the layers that coolUnused may drop, in the order in which it drops them.
func (s *Store) coldLayers() []*coldLayer {
	s.mu.Lock()
	defer s.mu.Unlock()
	busy, cold := make(map[string]bool), make(map[string]*coldLayer)
	for _, e := range s.byTag {
		if e.manifest == nil {
			continue
		}
		for _, m := range e.manifest.Memory {
			if busy[m.Owner] = busy[m.Owner] || e.needsRAM(); busy[m.Owner] {
				continue
			}
			l := cold[m.Owner]
			if l == nil {
				l = &coldLayer{owner: m.Owner}
				cold[m.Owner] = l
			}
			l.of = append(l.of, e)
			if used := e.lastUse(); used.After(l.used) {
				l.used = used
			}
		}
	}
	var list []*coldLayer
	for owner, l := range cold {
		if !busy[owner] {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b *coldLayer) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.owner, b.owner))
	})
	return list
}

// needsRAM reports whether the snapshot's layers must stay in RAM.
func (e *entry) needsRAM() bool { return e.refs.using() > 0 || e.InRAM() }

// lastUse returns the time when this daemon last used the snapshot, or the creation time if the
// daemon has not used it.
func (e *entry) lastUse() time.Time {
	if e.used.IsZero() {
		return e.created
	}
	return e.used
}

// dropCold drops a layer from RAM, if the layer is still cold. It first renames the layer, because
// a concurrent readBack must not find a layer that is partly removed.
func (s *Store) dropCold(owner string) {
	gone := s.layerDir(owner) + "." + snapshot.NewID()
	s.mu.Lock()
	if slices.ContainsFunc(s.memory[owner], (*entry).needsRAM) {
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	if err := os.Rename(s.layerDir(owner), gone); err == nil {
		_ = os.RemoveAll(gone) // after an error, the next start of the store removes it
	}
}
