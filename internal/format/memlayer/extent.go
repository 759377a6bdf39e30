// Package memlayer maps guest memory to layer files. It has the rules for extents: how to combine a
// branch's extents with those of its parent, and how to bound their number.
//
// The package only computes offsets. It opens, maps and copies no file. The VMM, which links
// package memlayer, makes the mappings. Package snapshot has the file formats, and package vmmproto
// the messages.
package memlayer

import (
	"fmt"

	"github.com/forkd/forkd/internal/proto/vm"
)

// CheckExtents reports whether the given extents are a valid map over layers of the given sizes in
// bytes: aligned, not empty, ascending, without overlap, and inside the files.
func CheckExtents(extents []vm.Extent, layerSizes []uint64) error {
	var end uint64
	for i, e := range extents {
		switch {
		case (e.GPA|e.Length|e.Offset)%vm.PageSize != 0 || e.Length == 0:
			return fmt.Errorf("extent %d: not a positive number of whole pages", i)
		case e.GPA < end || e.GPA+e.Length < e.GPA:
			return fmt.Errorf("extent %d: overlaps its predecessor", i)
		case int(e.Layer) >= len(layerSizes):
			return fmt.Errorf("extent %d: layer %d of %d", i, e.Layer, len(layerSizes))
		case e.Offset+e.Length < e.Offset || e.Offset+e.Length > layerSizes[e.Layer]:
			return fmt.Errorf("extent %d: bytes %d+%d are outside layer %d of %d bytes",
				i, e.Offset, e.Length, e.Layer, layerSizes[e.Layer])
		}
		end = e.GPA + e.Length
	}
	return nil
}

// CheckSaved checks the extents of a layer that a VMM saved. The parameter memoryBytes is the size
// of the guest's memory. There may be at most limit extents. They must satisfy CheckExtents for
// that one layer. The layer holds the guest's memory without the device hole, and the Offset of
// each extent must be the offset of its memory in the layer.
func CheckSaved(extents []vm.Extent, memoryBytes uint64, limit int) error {
	if len(extents) > limit {
		return fmt.Errorf("%d extents: at most %d were asked for", len(extents), limit)
	}
	if err := CheckExtents(extents, []uint64{memoryBytes}); err != nil {
		return err
	}
	for i, e := range extents {
		linear := e.GPA
		if e.GPA >= vm.HoleEnd {
			linear -= vm.HoleEnd - vm.HoleStart
		} else if e.GPA+e.Length > vm.HoleStart {
			return fmt.Errorf("extent %d: reaches into the device hole", i)
		}
		if e.Offset != linear {
			return fmt.Errorf("extent %d: memory at %#x has the offset %d in a layer, not %d", i, e.GPA, linear, e.Offset)
		}
	}
	return nil
}
