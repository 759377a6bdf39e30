package memlayer

import (
	"math/rand/v2"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

const testPages = 64

// paint returns, for every page of a small address space, the layer and the page that a map assigns
// to it.
func paint(extents []vm.Extent) (p [testPages][2]uint64) {
	for _, e := range extents {
		for off := uint64(0); off < e.Length; off += vm.PageSize {
			p[(e.GPA+off)/vm.PageSize] = [2]uint64{uint64(e.Layer) + 1, (e.Offset + off) / vm.PageSize}
		}
	}
	return p
}

func randomExtents(r *rand.Rand, layer uint32) (out []vm.Extent) {
	for page := r.Uint64N(4); page < testPages; {
		n := min(1+r.Uint64N(8), testPages-page)
		out = append(out, vm.Extent{GPA: page * vm.PageSize, Length: n * vm.PageSize, Layer: layer,
			Offset: page * vm.PageSize})
		page += n + r.Uint64N(9)
	}
	return out
}

func TestOverlayMatchesPainting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	sizes := []uint64{testPages * vm.PageSize, testPages * vm.PageSize, testPages * vm.PageSize}
	for range 2000 {
		a, b, c := randomExtents(r, 0), randomExtents(r, 1), randomExtents(r, 2)
		got := Overlay(Overlay(a, b), c)
		if err := CheckExtents(got, sizes); err != nil {
			t.Fatalf("%v\nof %+v", err, got)
		}
		want := paint(a)
		for _, upper := range [][]vm.Extent{b, c} {
			for i, v := range paint(upper) {
				if v[0] != 0 {
					want[i] = v
				}
			}
		}
		if paint(got) != want {
			t.Fatalf("overlay of %+v, %+v, %+v = %+v", a, b, c, got)
		}
	}
}

func TestJoinCoversEverythingWithinTheLimit(t *testing.T) {
	spans := []Span{{0, 1}, {2, 1}, {10, 5}, {100, 1}, {103, 2}, {1000, 1}}
	for limit := 1; limit <= len(spans); limit++ {
		got := Join(spans, limit)
		if len(got) != limit {
			t.Fatalf("limit %d: %v", limit, got)
		}
		for _, s := range spans {
			covered := false
			for _, g := range got {
				covered = covered || g.Start <= s.Start && s.Start+s.Length <= g.Start+g.Length
			}
			if !covered {
				t.Fatalf("limit %d: %v does not cover %v", limit, got, s)
			}
		}
	}
	if got := Join(spans, 3); got[0] != (Span{0, 15}) || got[1] != (Span{100, 5}) || got[2] != (Span{1000, 1}) {
		t.Fatalf("smallest gaps first: %v", got)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	good := []vm.Extent{{Length: vm.PageSize}, {GPA: 4 * vm.PageSize, Length: 2 * vm.PageSize, Layer: 1,
		Offset: vm.PageSize}}
	sizes := []uint64{vm.PageSize, 8 * vm.PageSize}
	if err := CheckExtents(good, sizes); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]vm.Extent{
		"unaligned":    {{GPA: 1, Length: vm.PageSize}},
		"empty":        {{}},
		"overlap":      {{Length: 2 * vm.PageSize, Layer: 1}, {GPA: vm.PageSize, Length: vm.PageSize, Layer: 1}},
		"layer":        {{Length: vm.PageSize, Layer: 2}},
		"past the end": {{Length: vm.PageSize, Offset: vm.PageSize}},
		"wrap":         {{Length: vm.PageSize, Offset: ^uint64(0) - vm.PageSize + 1}},
		"address wrap": {{GPA: ^uint64(0) - vm.PageSize + 1, Length: 2 * vm.PageSize, Layer: 1}},
	} {
		if CheckExtents(bad, sizes) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
