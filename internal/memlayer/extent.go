// Package memlayer maps guest memory to layer files: extents, how those of a branch lie over those of its parent, and how
// their number is bounded.
//
// It computes with offsets only. It opens, maps and copies nothing, and it knows no manifest: package snapshot has the
// file formats, and the VMM, which links this package, the mappings.
package memlayer

import (
	"fmt"

	"github.com/forkd/forkd/internal/wire"
)

// PageSize is the granularity of memory extents, in bytes.
const PageSize = 4096

// Extent says that Length bytes of guest memory from guest physical address GPA are found at Offset in layer file
// number Layer (0 is the base). GPA, Length and Offset are multiples of PageSize. Guest memory in no extent is zero.
//
// A layer has no holes there: on tmpfs the first access to a hole through a mapping, even a load, allocates a page, and
// kills the VM where there is no room for it.
type Extent struct {
	GPA    uint64
	Length uint64
	Layer  uint32
	Offset uint64
}

// EncodedSize is the length of one encoded extent in bytes.
const EncodedSize = 8 + 8 + 4 + 8

// AppendExtents encodes extents into w.
func AppendExtents(w *wire.Writer, extents []Extent) {
	w.U32(uint32(len(extents)))
	for _, e := range extents {
		w.U64(e.GPA)
		w.U64(e.Length)
		w.U32(e.Layer)
		w.U64(e.Offset)
	}
}

// ReadExtents decodes what AppendExtents wrote. Failures are reported by r.Err.
func ReadExtents(r *wire.Reader) []Extent {
	n := r.Count(EncodedSize)
	extents := make([]Extent, n)
	for i := range extents {
		extents[i] = Extent{GPA: r.U64(), Length: r.U64(), Layer: r.U32(), Offset: r.U64()}
	}
	return extents
}

// CheckExtents reports whether extents is a valid map over layers of the given sizes in bytes: aligned, not empty,
// ascending, without overlap, and inside the files.
func CheckExtents(extents []Extent, layerSizes []uint64) error {
	var end uint64
	for i, e := range extents {
		switch {
		case (e.GPA|e.Length|e.Offset)%PageSize != 0 || e.Length == 0:
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
