package memlayer

import (
	"cmp"
	"slices"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Coalesce bounds the number of extents of a branch. It returns ranges of guest memory to copy from
// lower into the branch's own layer; each range lies between two extents of that layer.
// Overlay(lower, the result of Fill) then has at most limit extents. Ranges that save most extents
// per byte come first. Extents of lower outside the branch's own extents may exceed the bound, by
// at most two more than lower has.
//
// Only ranges that are contiguous in the layer too qualify, because a layer has no space for
// addresses without RAM.
func Coalesce(lower, own []vm.Extent, limit int) []Span {
	whole := Overlay(lower, own)
	excess := len(whole) - limit
	if excess <= 0 {
		return nil
	}
	type gap struct {
		Span
		saves uint64 // extents
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

// Fill returns own with the ranges in fill, which Coalesce chose, added to its layer.
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

// Slice returns the parts of extents in s. The extents are valid by CheckExtents.
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
