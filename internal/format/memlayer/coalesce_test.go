package memlayer

import (
	"math/rand/v2"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Filling the gaps that Coalesce selects does not change the content of any page, because the pages
// of the gaps are copied from the layers of the lower map.
func TestCoalesceKeepsContentWithinTheLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	sizes := []uint64{testPages * vm.PageSize, testPages * vm.PageSize}
	for range 3000 {
		lower, own := randomExtents(r, 0), randomExtents(r, 1)
		want := paint(Overlay(lower, own))
		limit := 1 + r.IntN(10)
		fill := Coalesce(lower, own, limit)
		var copied [testPages][2]uint64 // for each page of the own layer: the layer and the page that were copied there
		for _, s := range fill {
			for _, e := range Slice(lower, s) {
				if e.GPA < s.Start || e.GPA+e.Length > s.Start+s.Length {
					t.Fatalf("%+v is outside of %+v", e, s)
				}
				for p, v := range paint([]vm.Extent{e}) {
					if v[0] != 0 {
						copied[p] = v
					}
				}
			}
		}
		filled := Fill(own, fill)
		if len(filled) != len(own)-len(fill) {
			t.Fatalf("%d extents with %d gaps filled became %d", len(own), len(fill), len(filled))
		}
		whole := Overlay(lower, filled)
		if err := CheckExtents(whole, sizes); err != nil {
			t.Fatal(err)
		}
		if n := len(whole); n > limit && n > len(lower)+2 {
			t.Fatalf("%d extents over a lower map of %d, limit %d", n, len(lower), limit)
		}
		dirty := paint(own)
		for p, v := range paint(whole) {
			if v[0] == 2 && dirty[p][0] == 0 { // the page is in the own layer, but is not dirty
				v = copied[v[1]]
			}
			if v != want[p] {
				t.Fatalf("page %d is %v, want %v: lower %+v own %+v fill %+v", p, v, want[p], lower, own, fill)
			}
		}
	}
}

func TestCoalesceLeavesTheDeviceHole(t *testing.T) {
	own := []vm.Extent{{Length: vm.PageSize, Layer: 1}, {GPA: 8 * vm.PageSize, Length: vm.PageSize, Layer: 1,
		Offset: vm.PageSize}}
	if fill := Coalesce(nil, own, 1); len(fill) != 0 {
		t.Fatalf("filled %+v, which the layer has no room for", fill)
	}
}
