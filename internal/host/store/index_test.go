package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/phase"
)

// checkIndex compares the index of a store with what a walk over all its entries finds.
func checkIndex(t testing.TB, x *index) {
	t.Helper()
	want := newIndex()
	for _, tag := range slices.Sorted(maps.Keys(x.byTag)) {
		e := x.byTag[tag]
		if e.tag != tag {
			t.Errorf("the entry of tag %q has the tag %q", tag, e.tag)
		}
		want.addLocked(e)
	}
	sets := func(lists map[string][]*entry) map[string]map[*entry]int {
		counts := make(map[string]map[*entry]int)
		for key, list := range lists {
			counts[key] = make(map[*entry]int)
			for _, e := range list {
				counts[key][e]++
			}
		}
		return counts
	}
	for _, part := range []struct {
		name      string
		got, want any
	}{
		{"byID", x.byID, want.byID},
		{"memory", sets(x.memory), sets(want.memory)},
		{"disk", sets(x.disk), sets(want.disk)},
		{"children", sets(x.children), sets(want.children)},
		{"based", sets(x.based), sets(want.based)},
		{"parts", sets(x.parts), sets(want.parts)},
		{"damaged", x.damaged, want.damaged},
	} {
		if !reflect.DeepEqual(part.got, part.want) {
			t.Errorf("index %s has %v, but the entries have %v", part.name, part.got, part.want)
		}
	}
}

// TestIndexFollowsEntries adds, replaces and drops random entries.
func TestIndexFollowsEntries(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	x := newIndex()
	for i := range 3000 {
		e := synthetic(i, rnd.IntN(40))
		e.tag = fmt.Sprint("t", rnd.IntN(60))
		switch old := x.byTag[e.tag]; {
		case old != nil && rnd.IntN(2) == 0:
			x.dropLocked(old)
			x.dropLocked(old) // ignored
		case old != nil && old.manifest != nil && rnd.IntN(2) == 0:
			m := *old.manifest
			m.Disk = &snapshot.Disk{Base: snapshot.Base{Digest: fmt.Sprintf("sha256:%02d", i%7)}}
			x.setManifestLocked(old, &m)
		default:
			if rnd.IntN(8) == 0 {
				e.manifest = nil
				e.EnterLocked([]phase.Phase{phase.Damaged, phase.Failed}[rnd.IntN(2)])
			}
			x.addLocked(e)
		}
		if i%50 == 0 {
			checkIndex(t, &x)
		}
	}
	for _, e := range x.byTag {
		x.dropLocked(e)
	}
	if !reflect.DeepEqual(x, newIndex()) {
		t.Errorf("the index of no entries has %+v", x)
	}
}

// synthetic returns an entry without files. It descends from the entry with the number parent.
func synthetic(i, parent int) *entry {
	id := func(i int) string { return fmt.Sprintf("snap-%08d", i) }
	layers := []snapshot.File{{Owner: id(parent)}, {Owner: id(i)}}
	e := &entry{tag: fmt.Sprintf("t%d", i), manifest: &snapshot.Manifest{ID: id(i),
		Parent: &snapshot.Ref{ID: id(parent)}, Memory: layers,
		Disk: &snapshot.Disk{Base: snapshot.Base{Digest: fmt.Sprintf("sha256:%02d", parent)}, Layers: layers}}}
	e.EnterLocked(phase.Stored)
	return e
}

// BenchmarkLookups measures, in stores of several sizes, what a deletion looks up for each
// snapshot: its dependents, the other snapshots with its layers, and the bases in use.
func BenchmarkLookups(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := &Store{index: newIndex()}
			for i := range n {
				s.addLocked(synthetic(i+1, i/10))
			}
			e := s.byTag[fmt.Sprintf("t%d", n/2)]
			for b.Loop() {
				s.dependentsLocked(e)
				s.isSharedLocked(e, e.manifest.ID)
				s.dropLocked(e)
				s.addLocked(e)
			}
		})
	}
}
