package sandbox

import (
	"os"

	"github.com/forkd/forkd/internal/memlayer"
)

// flatten copies what extents finds in other layers than number own into dst, whose number it is, and returns the map
// over dst alone. All layers have guest memory at the same offsets.
func flatten(dst *os.File, own uint32, extents []memlayer.Extent, layers []*os.File) ([]memlayer.Extent, error) {
	flat := make([]memlayer.Extent, len(extents))
	buf := make([]byte, copyBuffer)
	for i, e := range extents {
		if e.Layer != own {
			if err := copyExtent(dst, layers[e.Layer], e, buf); err != nil {
				return nil, err
			}
		}
		e.Layer = 0
		flat[i] = e
	}
	return memlayer.Overlay(nil, flat), nil
}

// copyBuffer is how much of a layer is copied at a time, in bytes; a multiple of the page size.
const copyBuffer = 1 << 20

// copyExtent copies one extent of src to the same place in dst, which has none of its pages yet: pages of zeros are left
// out, because on a RAM file system every page written is a page of the host's memory.
func copyExtent(dst, src *os.File, e memlayer.Extent, buf []byte) error {
	for at, end := int64(e.Offset), int64(e.Offset+e.Length); at < end; {
		p := buf[:min(int64(len(buf)), end-at)]
		if _, err := src.ReadAt(p, at); err != nil {
			return err
		}
		for len(p) > 0 {
			zeros := isZero(p[:memlayer.PageSize])
			n := memlayer.PageSize
			for n < len(p) && isZero(p[n:n+memlayer.PageSize]) == zeros {
				n += memlayer.PageSize
			}
			if !zeros {
				if _, err := dst.WriteAt(p[:n], at); err != nil {
					return err
				}
			}
			p, at = p[n:], at+int64(n)
		}
	}
	return nil
}

func isZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
