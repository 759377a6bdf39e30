package memlayer

import (
	"cmp"
	"slices"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Coalesce selects gaps between the extents of a branch's own layer. The caller then fills these
// gaps, so that the branch has at most limit extents. To fill a gap, the caller copies the gap's
// memory from the parent's layers (lower) into the branch's layer (own). The extents of the branch
// are the result of Overlay(lower, Fill(own, gaps)). Coalesce prefers the gaps that save the most
// extents per byte. It cannot remove extents of the parent's map that lie before the first or after
// the last extent of the branch's own layer. The result may exceed limit by the number of these
// extents plus two.
//
// A gap qualifies only if it consists of RAM, because the layer has no room for other addresses.
func Coalesce(lower, own []vm.Extent, limit int) []Span {
	whole := Overlay(lower, own)
	excess := len(whole) - limit
	if excess <= 0 {
		return nil
	}
	type gap struct {
		Span
		saves uint64 // number of extents that filling the gap saves
	}
	var gaps []gap
	i := 0
	for n := 1; n < len(own); n++ {
		a, b := own[n-1], own[n]
		end := a.GPA + a.Length
		for i < len(whole) && whole[i].GPA < end {
			i++
		}
		saves := uint64(1)
		for i < len(whole) && whole[i].GPA < b.GPA {
			saves++
			i++
		}
		if b.GPA > end && b.GPA-a.GPA == b.Offset-a.Offset {
			gaps = append(gaps, gap{Span{end, b.GPA - end}, saves})
		}
	}
	slices.SortFunc(gaps, func(x, y gap) int { return cmp.Compare(x.Length*y.saves, y.Length*x.saves) })
	var fill []Span
	for _, g := range gaps {
		if excess <= 0 {
			break
		}
		fill = append(fill, g.Span)
		excess -= int(g.saves)
	}
	slices.SortFunc(fill, func(x, y Span) int { return cmp.Compare(x.Start, y.Start) })
	return fill
}

// Fill returns the extents of a branch's layer after its gaps were filled, given the extents before
// the filling (own) and the gaps that Coalesce has returned (fill).
func Fill(own []vm.Extent, fill []Span) []vm.Extent {
	out := make([]vm.Extent, 0, len(own)-len(fill))
	for _, e := range own {
		if n := len(out); n > 0 && len(fill) > 0 && fill[0].Start+fill[0].Length == e.GPA {
			out[n-1].Length += fill[0].Length + e.Length
			fill = fill[1:]
			continue
		}
		out = append(out, e)
	}
	return out
}

// Slice returns the parts of the given extents that are within s. The extents must satisfy
// CheckExtents.
func Slice(extents []vm.Extent, s Span) []vm.Extent {
	first, _ := slices.BinarySearchFunc(extents, s.Start, func(e vm.Extent, at uint64) int {
		if e.GPA+e.Length <= at {
			return -1
		}
		return 1
	})
	var out []vm.Extent
	for _, e := range extents[first:] {
		if e.GPA >= s.Start+s.Length {
			break
		}
		if e.GPA < s.Start {
			_, e = split(e, s.Start)
		}
		if e.GPA+e.Length > s.Start+s.Length {
			e, _ = split(e, s.Start+s.Length)
		}
		out = append(out, e)
	}
	return out
}
