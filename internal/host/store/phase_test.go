package store

import (
	"slices"
	"testing"
)

// TestPhases checks every pair of phases. For the phase deleting, it checks every phase that can
// come before deleting. If a change is in the drawing in phase.go, it must be permitted. Every
// other change must be refused, and must leave the phase as it was.
func TestPhases(t *testing.T) {
	drawn := map[phase][]phase{
		0:               {phaseHot, phaseStored, phaseDamaged, phaseFailed, phaseUnnamedHot, phaseUnnamed},
		phaseHot:        {phaseStored, phaseDeleting},
		phaseStored:     {phaseDamaged, phaseDeleting},
		phaseDamaged:    {phaseDeleting},
		phaseFailed:     {phaseDeleting, phaseGone},
		phaseUnnamedHot: {phaseDeleting},
		phaseUnnamed:    {phaseDeleting},
	}
	ofDeletion := map[phase][]phase{ // phases that may follow deleting, by the phase before it
		phaseHot:        {phaseHot, phaseStored, phaseUnnamedHot, phaseGone},
		phaseStored:     {phaseStored, phaseUnnamed, phaseGone},
		phaseDamaged:    {phaseDamaged, phaseGone},
		phaseFailed:     {phaseFailed, phaseGone},
		phaseUnnamedHot: {phaseUnnamedHot, phaseGone},
		phaseUnnamed:    {phaseUnnamed, phaseGone},
	}
	try := func(l life, to phase, allowed bool) {
		t.Helper()
		was := l
		entered := l.enterLocked(to)
		switch {
		case entered != allowed, !allowed && l != was:
			t.Errorf("%v (before: %v) to %v: %v, now %v", was.phase, was.before, to, entered, l.phase)
		case to == phaseStored && was.phase == phaseDeleting && was.before == phaseHot:
			if l.phase != phaseDeleting || l.before != phaseStored || l.inRAM() {
				t.Errorf("flushed while it is deleted: %+v", l)
			}
		case allowed && l.phase != to:
			t.Errorf("%v to %v: now %v", was.phase, to, l.phase)
		}
	}
	for to := phase(1); to <= phaseGone; to++ {
		for from := phase(0); from <= phaseGone; from++ {
			if from != phaseDeleting {
				try(life{phase: from}, to, slices.Contains(drawn[from], to))
			}
		}
		for before, allowed := range ofDeletion {
			try(life{phase: phaseDeleting, before: before}, to, slices.Contains(allowed, to))
		}
	}
}

// While an entry is being deleted, it has the properties of its previous phase. So a deletion that
// fails changes nothing.
func TestDeletionThatFails(t *testing.T) {
	for _, p := range []phase{phaseHot, phaseStored, phaseDamaged, phaseFailed, phaseUnnamedHot, phaseUnnamed} {
		l := life{phase: p}
		inRAM, unnamed := l.inRAM(), l.isUnnamed()
		if !l.enterLocked(phaseDeleting) || l.inRAM() != inRAM || l.isUnnamed() != unnamed || l.listed() {
			t.Errorf("%v while it is deleted: %+v", p, l)
		}
		if l.undeleteLocked(); l.phase != p {
			t.Errorf("%v is %v after a deletion that failed", p, l.phase)
		}
	}
}
