// Package phase holds the phases of a snapshot in the store, and the permitted changes of a phase.
//
// It takes no locks and touches no files.
package phase

import (
	"fmt"
	"slices"
)

// Phase is the phase of a snapshot, from its publication to its removal.
type Phase int

// Phases of a snapshot:
//
//	Arrive ──▶ arriving ──▶ gone, or deleting (not drawn)
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
// The phase deleting begins when a deletion has chosen a snapshot, and ends when the files are removed.
// If sandboxes follow the snapshot, it becomes unnamed instead, and is deleted when the last of
// these sandboxes stops following it. If a deletion fails, the snapshot returns to its previous
// phase, or to stored if it was flushed during the deletion.
const (
	Hot        Phase = iota + 1 // usable; at least the memory layer is only in RAM
	Stored                      // usable; on disk
	Damaged                     // listed with the reason why it is damaged; has a directory
	Failed                      // listed with the reason why it failed; has no files, see ListFailed
	Deleting                    // gets no new references
	UnnamedHot                  // the snapshot lost its name while hot; only its followers may use it (Store.Follow)
	Unnamed                     // the snapshot lost its name while stored; only its followers may use it
	Gone
	Arriving // usable for forks; files are missing, see store.Staging.Arrive
)

// nextPhases has the phases that may follow each phase. It is the drawing above as code. After
// Deleting, mayEnter also permits a return to the phase before Deleting.
var nextPhases = map[Phase][]Phase{
	Hot:        {Stored, Deleting},
	Stored:     {Damaged, Deleting},
	Damaged:    {Deleting},
	Failed:     {Deleting, Gone},
	Deleting:   {Hot, Stored, Damaged, Failed, UnnamedHot, Unnamed, Gone, Arriving},
	UnnamedHot: {Deleting},
	Unnamed:    {Deleting},
	Gone:       {},
	Arriving:   {Hot, Deleting, Gone},
}

// String returns the name of the phase, for messages.
func (p Phase) String() string {
	names := []string{"none", "hot", "stored", "damaged", "failed", "deleting", "unnamed hot", "unnamed", "gone",
		"arriving"}
	if int(p) < len(names) && p >= 0 {
		return names[p]
	}
	return fmt.Sprintf("phase %d", int(p))
}

// Life holds the phase of an entry. The zero value belongs to an entry that is being made.
type Life struct {
	Phase  Phase
	Before Phase // the phase before deleting
}

// mayEnter reports whether the entry may change to the given phase.
func (l *Life) mayEnter(to Phase) bool {
	switch {
	case l.Phase == 0:
		return to != Deleting && to != Gone
	case l.Phase != Deleting:
		return slices.Contains(nextPhases[l.Phase], to)
	case to == UnnamedHot:
		return l.Before == Hot || l.Before == UnnamedHot
	case to == Unnamed:
		return l.Before == Stored || l.Before == Unnamed
	}
	return to == Gone || to == l.Before || to == Stored && l.Before == Hot
}

// EnterLocked changes the phase, and reports whether the change was permitted. No other function
// writes the phase.
func (l *Life) EnterLocked(to Phase) bool {
	switch {
	case !l.mayEnter(to):
		return false
	// the snapshot was flushed during its deletion
	case l.Phase == Deleting && to == Stored && l.Before == Hot:
		l.Before = Stored
		return true
	case to == Deleting:
		l.Before = l.Phase
	}
	l.Phase = to
	return true
}

// Listed reports whether a client can see the entry.
func (l *Life) Listed() bool {
	return l.Phase == Hot || l.Phase == Stored || l.Phase == Damaged || l.Phase == Failed ||
		l.Phase == Arriving
}

// IsUnnamed reports whether the entry has lost its name.
func (l *Life) IsUnnamed() bool {
	return l.Phase == UnnamedHot || l.Phase == Unnamed ||
		l.Phase == Deleting && (l.Before == UnnamedHot || l.Before == Unnamed)
}

// InRAM reports whether some part of the snapshot, such as its memory layer, is only in RAM.
func (l *Life) InRAM() bool {
	p := l.Phase
	if p == Deleting {
		p = l.Before
	}
	return p == Hot || p == UnnamedHot
}

// AwaitsFlush reports whether the flusher still has to write the snapshot to disk.
func (l *Life) AwaitsFlush() bool { return l.InRAM() && !l.IsUnnamed() }

// UndeleteLocked restores the phase that the entry had before a failed deletion.
func (l *Life) UndeleteLocked() {
	if l.Phase == Deleting {
		l.EnterLocked(l.Before)
	}
}
