package byage

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

// A Set gives the same answers as a list that is sorted for each answer.
func TestSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	var s Set[string]
	have := map[string]Place{}
	for step := range 3000 {
		id := strconv.Itoa(rng.IntN(60))
		switch rng.IntN(4) {
		case 0:
			s.Delete(id)
			delete(have, id)
		case 1:
			checkAfter(t, &s, have, Place{time.Unix(rng.Int64N(10), 0), id}, rng.IntN(20))
		default:
			at := Place{time.Unix(rng.Int64N(10), 0), id}
			s.Add(at, id)
			have[id] = at
		}
		_, want := have[id]
		if got := s.Get(id); (got == id) != want || s.Len() != len(have) {
			t.Fatalf("step %d: Get(%s) is %q, and there are %d of %d", step, id, got, s.Len(), len(have))
		}
	}
	checkAfter(t, &s, have, Place{}, len(have)+1)
}

func checkAfter(t *testing.T, s *Set[string], have map[string]Place, at Place, most int) {
	t.Helper()
	var want []string
	for id, p := range have {
		if p.compare(at) > 0 {
			want = append(want, id)
		}
	}
	slices.SortFunc(want, func(a, b string) int { return have[a].compare(have[b]) })
	want = want[:min(most, len(want))]
	if got := s.After(at, most); !slices.Equal(got, want) {
		t.Fatalf("after %v, at most %d: %v, want %v", at, most, got, want)
	}
}

// A page takes as much memory in a long list as in a short one.
func TestPageOfLongList(t *testing.T) {
	var s Set[int]
	for i := range 20_000 {
		s.Add(Place{time.Unix(int64(i), 0), strconv.Itoa(i)}, i)
	}
	if page := s.After(Place{time.Unix(9999, 0), "9999"}, 100); len(page) != 100 || page[0] != 10_000 {
		t.Fatalf("a page of %d, from %v", len(page), page[0])
	}
	if n := testing.AllocsPerRun(100, func() { s.After(Place{time.Unix(9999, 0), "9999"}, 100) }); n > 1 {
		t.Errorf("%v allocations for a page, want 1: only the page itself", n)
	}
}
