package store

import (
	"fmt"
	"slices"
)

// phase is the phase of a snapshot, from its publication to its removal.
type phase int

// Phases of a snapshot:
//
//	Arrive ──▶ arriving ──▶ gone
//	             │ all files are there
//	             ▼
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
// A snapshot is deleting from the time when a deletion has chosen it until its files are removed.
// If sandboxes follow the snapshot, it becomes unnamed instead, and is deleted when the last of
// these sandboxes stops following it. If a deletion fails, the snapshot returns to its previous
// phase, or to stored if it was flushed during the deletion.
const (
	phaseHot        phase = iota + 1 // usable; at least the memory layer is only in RAM
	phaseStored                      // usable; on disk
	phaseDamaged                     // listed with the reason why it is damaged; has a directory
	phaseFailed                      // listed with the reason why it failed; has no files, see ListFailed
	phaseDeleting                    // gets no new references
	phaseUnnamedHot                  // the snapshot lost its name while hot; only its followers may use it (Store.Follow)
	phaseUnnamed                     // the snapshot lost its name while stored; only its followers may use it
	phaseGone
	phaseArriving // usable for forks; files are missing, see Staging.Arrive
)

// nextPhases has the phases that may follow each phase. It is the drawing above as code. After
// phaseDeleting, mayEnter also permits a return to the phase before phaseDeleting.
var nextPhases = map[phase][]phase{
	phaseHot:        {phaseStored, phaseDeleting},
	phaseStored:     {phaseDamaged, phaseDeleting},
	phaseDamaged:    {phaseDeleting},
	phaseFailed:     {phaseDeleting, phaseGone},
	phaseDeleting:   {phaseHot, phaseStored, phaseDamaged, phaseFailed, phaseUnnamedHot, phaseUnnamed, phaseGone},
	phaseUnnamedHot: {phaseDeleting},
	phaseUnnamed:    {phaseDeleting},
	phaseGone:       {},
	phaseArriving:   {phaseHot, phaseGone},
}

// String returns the name of the phase, for messages.
func (p phase) String() string {
	names := []string{"none", "hot", "stored", "damaged", "failed", "deleting", "unnamed hot", "unnamed", "gone",
		"arriving"}
	if int(p) < len(names) && p >= 0 {
		return names[p]
	}
	return fmt.Sprintf("phase %d", int(p))
}

// life holds the phase of an entry. The zero value belongs to an entry that is being made.
type life struct {
	phase  phase
	before phase // the phase before deleting
}

// mayEnter reports whether the entry may change to the given phase.
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

// enterLocked changes the phase, and reports whether the change was permitted. No other function
// writes the phase.
func (l *life) enterLocked(to phase) bool {
	switch {
	case !l.mayEnter(to):
		return false
	// the snapshot was flushed during its deletion
	case l.phase == phaseDeleting && to == phaseStored && l.before == phaseHot:
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
	return l.phase == phaseHot || l.phase == phaseStored || l.phase == phaseDamaged || l.phase == phaseFailed ||
		l.phase == phaseArriving
}

// isUnnamed reports whether the entry has lost its name.
func (l *life) isUnnamed() bool {
	return l.phase == phaseUnnamedHot || l.phase == phaseUnnamed ||
		l.phase == phaseDeleting && (l.before == phaseUnnamedHot || l.before == phaseUnnamed)
}

// inRAM reports whether some part of the snapshot, such as its memory layer, is only in RAM.
func (l *life) inRAM() bool {
	p := l.phase
	if p == phaseDeleting {
		p = l.before
	}
	return p == phaseHot || p == phaseUnnamedHot
}

// awaitsFlush reports whether the flusher still has to write the snapshot to disk.
func (l *life) awaitsFlush() bool { return l.inRAM() && !l.isUnnamed() }

// undeleteLocked restores the phase that the entry had before a failed deletion.
func (l *life) undeleteLocked() {
	if l.phase == phaseDeleting {
		l.enterLocked(l.before)
	}
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
