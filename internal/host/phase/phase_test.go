package phase

import (
	"slices"
	"testing"
)

// TestPhases checks every pair of phases. For the phase deleting, it checks every phase that can
// come before deleting. If a change is in the drawing in phase.go, it must be permitted. Every
// other change must be refused, and must leave the phase as it was.
func TestPhases(t *testing.T) {
	drawn := map[Phase][]Phase{
		0:          {Hot, Stored, Damaged, Failed, UnnamedHot, Unnamed, Arriving},
		Hot:        {Stored, Deleting},
		Stored:     {Damaged, Deleting},
		Damaged:    {Deleting},
		Failed:     {Deleting, Gone},
		UnnamedHot: {Deleting},
		Unnamed:    {Deleting},
		Arriving:   {Hot, Deleting, Gone},
	}
	ofDeletion := map[Phase][]Phase{ // phases that may follow deleting, by the phase before it
		Hot:        {Hot, Stored, UnnamedHot, Gone},
		Stored:     {Stored, Unnamed, Gone},
		Damaged:    {Damaged, Gone},
		Failed:     {Failed, Gone},
		UnnamedHot: {UnnamedHot, Gone},
		Unnamed:    {Unnamed, Gone},
		Arriving:   {Arriving, Gone},
	}
	try := func(l Life, to Phase, allowed bool) {
		t.Helper()
		was := l
		entered := l.EnterLocked(to)
		switch {
		case entered != allowed, !allowed && l != was:
			t.Errorf("%v (before: %v) to %v: %v, now %v", was.Phase, was.Before, to, entered, l.Phase)
		case to == Stored && was.Phase == Deleting && was.Before == Hot:
			if l.Phase != Deleting || l.Before != Stored || l.InRAM() {
				t.Errorf("flushed while it is deleted: %+v", l)
			}
		case allowed && l.Phase != to:
			t.Errorf("%v to %v: now %v", was.Phase, to, l.Phase)
		}
	}
	for to := Phase(1); to <= Arriving; to++ {
		for from := Phase(0); from <= Arriving; from++ {
			if from != Deleting {
				try(Life{Phase: from}, to, slices.Contains(drawn[from], to))
			}
		}
		for before, allowed := range ofDeletion {
			try(Life{Phase: Deleting, Before: before}, to, slices.Contains(allowed, to))
		}
	}
}

// While an entry is being deleted, it has the properties of its previous phase. So a deletion that
// fails changes nothing.
func TestDeletionThatFails(t *testing.T) {
	for _, p := range []Phase{Hot, Stored, Damaged, Failed, UnnamedHot, Unnamed, Arriving} {
		l := Life{Phase: p}
		InRAM, unnamed := l.InRAM(), l.IsUnnamed()
		if !l.EnterLocked(Deleting) || l.InRAM() != InRAM || l.IsUnnamed() != unnamed || l.Listed() {
			t.Errorf("%v while it is deleted: %+v", p, l)
		}
		if l.UndeleteLocked(); l.Phase != p {
			t.Errorf("%v is %v after a deletion that failed", p, l.Phase)
		}
	}
}
