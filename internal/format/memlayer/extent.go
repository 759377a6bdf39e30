// Package memlayer maps guest memory to layer files: extents, how those of a branch lie over those
// of its parent, and how their number is bounded.
//
// It computes with offsets only. It opens, maps, copies and encodes nothing, and it knows no
// manifest: package snapshot has the file formats, vmmproto the messages, and the VMM, which links
// this package, the mappings.
package memlayer

import (
	"fmt"

	"github.com/forkd/forkd/internal/proto/vm"
)

// CheckExtents reports whether extents is a valid map over layers of the given sizes in bytes:
// aligned, not empty, ascending, without overlap, and inside the files.
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
