package memlayer

import (
	"cmp"
	"slices"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Overlay returns the combination of two maps. An address that both maps contain is mapped as in
// upper. Both maps must satisfy CheckExtents. Overlay joins neighbouring extents that are
// contiguous in the same layer.
func Overlay(lower, upper []vm.Extent) []vm.Extent {
	lower = slices.Clone(lower) // the loop cuts its extents
	var out []vm.Extent
	var i int
	for _, u := range upper {
		for i < len(lower) && lower[i].GPA+lower[i].Length <= u.GPA {
			out = appendExtent(out, lower[i])
			i++
		}
		if i < len(lower) && lower[i].GPA < u.GPA { // u covers the tail or the middle of this extent
			head, rest := split(lower[i], u.GPA)
			out = appendExtent(out, head)
			lower[i] = rest
		}
		end := u.GPA + u.Length
		for i < len(lower) && lower[i].GPA+lower[i].Length <= end {
			i++
		}
		if i < len(lower) && lower[i].GPA < end {
			_, rest := split(lower[i], end)
			lower[i] = rest
		}
		out = appendExtent(out, u)
	}
	for ; i < len(lower); i++ {
		out = appendExtent(out, lower[i])
	}
	return out
}

func split(e vm.Extent, at uint64) (head, rest vm.Extent) {
	head, rest = e, e
	head.Length = at - e.GPA
	rest.GPA, rest.Offset, rest.Length = at, e.Offset+head.Length, e.Length-head.Length
	return head, rest
}

func appendExtent(out []vm.Extent, e vm.Extent) []vm.Extent {
	if n := len(out); n > 0 {
		p := &out[n-1]
		if p.Layer == e.Layer && p.GPA+p.Length == e.GPA && p.Offset+p.Length == e.Offset {
			p.Length += e.Length
			return out
		}
	}
	return append(out, e)
}

// Span is Length bytes, beginning at Start.
type Span struct{ Start, Length uint64 }

// Join joins spans across the smallest gaps between them until at most limit spans remain. The
// spans are ascending and do not overlap. Every extent costs one mmap at each fork, but a filled
// gap costs only a few bytes in the layer.
func Join(spans []Span, limit int) []Span {
	excess := len(spans) - limit
	if excess <= 0 || limit < 1 {
		return spans
	}
	gap := func(i int) uint64 { return spans[i+1].Start - spans[i].Start - spans[i].Length }
	order := make([]int, len(spans)-1)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(gap(a), gap(b)) })
	fill := make([]bool, len(spans))
	for _, i := range order[:excess] {
		fill[i] = true
	}
	out := make([]Span, 0, limit)
	for i, s := range spans {
		if i > 0 && fill[i-1] {
			last := &out[len(out)-1]
			last.Length = s.Start + s.Length - last.Start
		} else {
			out = append(out, s)
		}
	}
	return out
}
