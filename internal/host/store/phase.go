package store

import (
	"fmt"
	"slices"
)

// phase says where a snapshot is in its life.
type phase int

// The phases.
//
//	Publish ──▶ hot ─────────▶ stored ◀── a start of the store
//	             │  flushed      │
//	             │               │   damaged ◀── a start: a file is missing or wrong
//	             │               │     │
//	             │               │     │   failed ◀── ListFailed ──▶ gone
//	             ▼               ▼     ▼     ▼
//	            ┌─────────────────────────────┐
//	            │          deleting           │──▶ gone
//	            └─────────────────────────────┘
//	              │ ▲           │ ▲
//	              ▼ │           ▼ │
//	          unnamedHot      unnamed ◀── a start
//
// Deleting is entered when a deletion has chosen the snapshot, and left when it has removed the files.
// A snapshot that sandboxes follow loses its name instead, and is deleted when the last of them goes. A
// deletion that fails gives the snapshot back the phase that it had. One that is flushed while its
// deletion waits has been stored before.
const (
	phaseHot        phase = iota + 1 // usable; its memory layer, at least, is in RAM only
	phaseStored                      // usable; on disk
	phaseDamaged                     // listed with the reason; it has a directory
	phaseFailed                      // listed with the reason; it has no files, see ListFailed
	phaseDeleting                    // nobody gets a reference any more
	phaseUnnamedHot                  // hot when it lost its name: sandboxes that follow it may use it
	phaseUnnamed                     // stored when it lost its name
	phaseGone
)

// nextPhases has the phases that may follow each: the drawing above, as the code that decides. What
// follows deleting depends on what came before it, too.
var nextPhases = map[phase][]phase{
	phaseHot:        {phaseStored, phaseDeleting},
	phaseStored:     {phaseDamaged, phaseDeleting},
	phaseDamaged:    {phaseDeleting},
	phaseFailed:     {phaseDeleting, phaseGone},
	phaseDeleting:   {phaseHot, phaseStored, phaseDamaged, phaseFailed, phaseUnnamedHot, phaseUnnamed, phaseGone},
	phaseUnnamedHot: {phaseDeleting},
	phaseUnnamed:    {phaseDeleting},
	phaseGone:       {},
}

// String returns the name of the phase, for messages.
func (p phase) String() string {
	names := []string{"none", "hot", "stored", "damaged", "failed", "deleting", "unnamed hot", "unnamed", "gone"}
	if int(p) < len(names) && p >= 0 {
		return names[p]
	}
	return fmt.Sprintf("phase %d", int(p))
}

// life is the phase of an entry. Its zero value is an entry that is being made.
type life struct {
	phase  phase
	before phase // of a deletion
}

// mayEnter reports whether the next phase may be to.
func (l *life) mayEnter(to phase) bool {
	switch {
	case l.phase == 0:
		return to != phaseDeleting && to != phaseGone
	case l.phase != phaseDeleting:
		return slices.Contains(nextPhases[l.phase], to)
	case to == phaseUnnamedHot:
		return l.before == phaseHot || l.before == phaseUnnamedHot
	case to == phaseUnnamed:
		return l.before == phaseStored || l.before == phaseUnnamed
	}
	return to == phaseGone || to == l.before || to == phaseStored && l.before == phaseHot
}

// enterLocked changes the phase. Nothing else writes it. It reports whether that was allowed.
func (l *life) enterLocked(to phase) bool {
	switch {
	case !l.mayEnter(to):
		return false
	case l.phase == phaseDeleting && to == phaseStored && l.before == phaseHot: // flushed while its deletion waits
		l.before = phaseStored
		return true
	case to == phaseDeleting:
		l.before = l.phase
	}
	l.phase = to
	return true
}

// listed reports whether a client can see the entry.
func (l *life) listed() bool {
	return l.phase == phaseHot || l.phase == phaseStored || l.phase == phaseDamaged || l.phase == phaseFailed
}

// isUnnamed reports whether the entry has lost its name.
func (l *life) isUnnamed() bool {
	return l.phase == phaseUnnamedHot || l.phase == phaseUnnamed ||
		l.phase == phaseDeleting && (l.before == phaseUnnamedHot || l.before == phaseUnnamed)
}

// inRAM reports whether the memory layer, at least, is in RAM only.
func (l *life) inRAM() bool {
	p := l.phase
	if p == phaseDeleting {
		p = l.before
	}
	return p == phaseHot || p == phaseUnnamedHot
}

// undeleteLocked ends a deletion that has failed.
func (l *life) undeleteLocked() {
	if l.phase == phaseDeleting {
		l.enterLocked(l.before)
	}
}

// refs are the reasons for an entry to stay.
type refs struct {
	lease  int // its files are open; it is not deleted
	pin    int // by suspended sandboxes: it is not deleted, but no file is open
	follow int // its files are kept, but it can lose its name, see Follow
}

// keeping is how many references keep the snapshot from being deleted.
func (r *refs) keeping() int { return r.lease + r.pin }

// using is how many references need its files.
func (r *refs) using() int { return r.lease + r.follow }

// addLocked puts an entry into the indexes. Of several with one ID the first is found by it.
func (s *Store) addLocked(e *entry) {
	if old := s.byTag[e.tag]; old != nil {
		s.dropLocked(old)
	}
	s.byTag[e.tag] = e
	if e.manifest != nil && s.byID[e.manifest.ID] == nil {
		s.byID[e.manifest.ID] = e
	}
}

// dropLocked takes an entry out of the indexes. It is gone, unless addLocked follows.
func (s *Store) dropLocked(e *entry) {
	if s.byTag[e.tag] == e {
		delete(s.byTag, e.tag)
	}
	if e.manifest != nil && s.byID[e.manifest.ID] == e {
		delete(s.byID, e.manifest.ID)
	}
}
