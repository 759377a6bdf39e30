package sparse

import (
	"cmp"
	"slices"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Over returns the extents whose data is in the given layer.
func Over(extents []vm.Extent, layer int) (over []vm.Extent) {
	for _, e := range extents {
		if int(e.Layer) == layer {
			over = append(over, e)
		}
	}
	return over
}

// Covered returns the parts of a layer that the extents cover, in ascending order and without
// overlaps.
func Covered(extents []vm.Extent) (parts []Part) {
	sorted := slices.Clone(extents)
	slices.SortFunc(sorted, func(a, b vm.Extent) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, e := range sorted {
		start, end := int64(e.Offset), int64(e.Offset+e.Length)
		if n := len(parts); n > 0 && start <= parts[n-1].End {
			parts[n-1].End = max(parts[n-1].End, end)
			continue
		}
		parts = append(parts, Part{start, end})
	}
	return parts
}

// CoveredBytes returns how many bytes of a layer the extents cover.
func CoveredBytes(extents []vm.Extent) (sum uint64) {
	for _, p := range Covered(extents) {
		sum += uint64(p.End - p.Start)
	}
	return sum
}
