package store

import (
	"cmp"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// ramPart is the part of the RAM file system that coolUnused keeps free, for branches to come.
const ramPart = 4

// statRAM returns how many bytes of the RAM file system are free, and how many it has.
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
	used  time.Time // when one of them was, for the last time
	of    []*entry
}

// coolUnused frees layers in RAM that nobody uses, those used longest ago first, until a part of the
// file system is free. The next fork of their snapshots reads them back. Branches do not make room for
// themselves: without this one client's would take the RAM of everybody's, and for good.
func (s *Store) coolUnused() {
	if s.ramIsWide() || !s.cooling.CompareAndSwap(false, true) {
		return
	}
	defer s.cooling.Store(false)
	for _, l := range s.coldLayers() {
		for _, e := range l.of {
			s.closeIdle(e) // the files would keep the memory
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

// coldLayers returns the layers that coolUnused may free, in the order in which it does.
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

// lastUse is when the snapshot was used for the last time, as far as this daemon knows.
func (e *entry) lastUse() time.Time {
	if e.used.IsZero() {
		return e.created
	}
	return e.used
}

// dropCold removes a layer from RAM, if it is still cold. It goes by another name first, so that who
// reads the layer back meanwhile does not find half of it.
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
		_ = os.RemoveAll(gone) // else the next start does
	}
}
