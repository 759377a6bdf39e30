package sandbox

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/memlayer"
)

// flatten copies what extents finds in other layers than number own into dst, whose number it is, and returns the map
// over dst alone. All layers have guest memory at the same offsets.
func flatten(dst *os.File, own uint32, extents []memlayer.Extent, layers []*os.File) ([]memlayer.Extent, error) {
	flat := make([]memlayer.Extent, len(extents))
	for i, e := range extents {
		if e.Layer != own {
			if err := copyExtent(dst, layers[e.Layer], e); err != nil {
				return nil, err
			}
		}
		e.Layer = 0
		flat[i] = e
	}
	return memlayer.Overlay(nil, flat), nil
}

// copyExtent copies one extent of src to the same place in dst. Holes stay holes: dst has none of its pages there yet.
func copyExtent(dst, src *os.File, e memlayer.Extent) error {
	end := int64(e.Offset + e.Length)
	for at := int64(e.Offset); at < end; {
		// The file offset that this moves is used by nobody.
		data, err := unix.Seek(int(src.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= end {
			return nil
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		hole = min(hole, end)
		if _, err := io.Copy(io.NewOffsetWriter(dst, data), io.NewSectionReader(src, data, hole-data)); err != nil {
			return err
		}
		at = hole
	}
	return nil
}
