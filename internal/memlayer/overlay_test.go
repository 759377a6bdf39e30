package memlayer

import (
	"math/rand/v2"
	"testing"

	"github.com/forkd/forkd/internal/wire"
)

const testPages = 64

// paint gives every page of a small address space the layer and page that a map assigns to it.
func paint(extents []Extent) (p [testPages][2]uint64) {
	for _, e := range extents {
		for off := uint64(0); off < e.Length; off += PageSize {
			p[(e.GPA+off)/PageSize] = [2]uint64{uint64(e.Layer) + 1, (e.Offset + off) / PageSize}
		}
	}
	return p
}

func randomExtents(r *rand.Rand, layer uint32) (out []Extent) {
	for page := r.Uint64N(4); page < testPages; {
		n := min(1+r.Uint64N(8), testPages-page)
		out = append(out, Extent{GPA: page * PageSize, Length: n * PageSize, Layer: layer, Offset: page * PageSize})
		page += n + r.Uint64N(9)
	}
	return out
}

func TestOverlayMatchesPainting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	sizes := []uint64{testPages * PageSize, testPages * PageSize, testPages * PageSize}
	for range 2000 {
		a, b, c := randomExtents(r, 0), randomExtents(r, 1), randomExtents(r, 2)
		got := Overlay(Overlay(a, b), c)
		if err := CheckExtents(got, sizes); err != nil {
			t.Fatalf("%v\nof %+v", err, got)
		}
		want := paint(a)
		for _, upper := range [][]Extent{b, c} {
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

func TestExtentsRoundTripAndRefuseNonsense(t *testing.T) {
	want := []Extent{{0, PageSize, 0, 0}, {4 * PageSize, 2 * PageSize, 1, PageSize}}
	var w wire.Writer
	AppendExtents(&w, want)
	r := wire.NewReader(w.Bytes())
	got := ReadExtents(r)
	if r.Done() != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Fatalf("%+v, %v", got, r.Err())
	}
	sizes := []uint64{PageSize, 8 * PageSize}
	if err := CheckExtents(want, sizes); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]Extent{
		"unaligned":    {{1, PageSize, 0, 0}},
		"empty":        {{0, 0, 0, 0}},
		"overlap":      {{0, 2 * PageSize, 1, 0}, {PageSize, PageSize, 1, 0}},
		"layer":        {{0, PageSize, 2, 0}},
		"past the end": {{0, PageSize, 0, PageSize}},
		"wrap":         {{0, PageSize, 0, ^uint64(0) - PageSize + 1}},
		"address wrap": {{^uint64(0) - PageSize + 1, 2 * PageSize, 1, 0}},
	} {
		if CheckExtents(bad, sizes) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
