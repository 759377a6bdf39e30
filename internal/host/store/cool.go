package store

import (
	"cmp"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// ramPart is the fraction of the RAM file system, as a divisor, that coolUnused keeps free for
// later branches.
const ramPart = 4

// statRAM returns the free bytes and the size of the RAM file system.
func (s *Store) statRAM() (free, all uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.ram, &st); err != nil {
		return 0, 0, err
	}
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), nil
}

// coldLayer is a memory layer in RAM whose snapshots are all on disk and not in use.
type coldLayer struct {
	owner string
	used  time.Time // the latest use of one of them
	of    []*entry
}

// coolUnused frees unused layers in RAM, least recently used first, until a part of the file system
// is free. The next fork of their snapshots reads them back. Branches do not make room for
// themselves: without coolUnused one client's branches would permanently take the RAM that all
// clients share.
func (s *Store) coolUnused() {
	if s.ramIsWide() || !s.cooling.CompareAndSwap(false, true) {
		return
	}
	defer s.cooling.Store(false)
	for _, l := range s.coldLayers() {
		for _, e := range l.of {
			s.closeIdle(e) // open files would keep the memory
		}
		if s.dropCold(l.owner); s.ramIsWide() {
			return
		}
	}
}

func (s *Store) ramIsWide() bool {
	free, all, err := s.ramRoom()
	return err != nil || free >= all/ramPart
}

// coldLayers returns the layers that coolUnused may free, in the order in which it frees them.
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
func (e *entry) needsRAM() bool { return e.refs.using() > 0 || e.inRAM() }

// lastUse returns when the snapshot was last used, as far as this daemon knows.
func (e *entry) lastUse() time.Time {
	if e.used.IsZero() {
		return e.created
	}
	return e.used
}

// dropCold removes a layer from RAM if it is still cold. It first renames the layer, so that a
// concurrent read-back does not find an incomplete one.
func (s *Store) dropCold(owner string) {
	gone := s.layerDir(owner) + "." + snapshot.NewID()
	s.mu.Lock()
	for _, e := range s.byTag {
		if e.manifest != nil && e.needsRAM() && hasMemory(e.manifest, owner) {
			s.mu.Unlock()
			return
		}
	}
	s.mu.Unlock()
	if err := os.Rename(s.layerDir(owner), gone); err == nil {
		_ = os.RemoveAll(gone) // otherwise the next start removes it
	}
}
