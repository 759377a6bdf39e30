package chain

import (
	"context"
	"os"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
)

// flatten copies all extents that are in other layers to the file dst, which holds the layer with
// the number own. The returned memory map refers only to this layer. A page of guest memory has the
// same offset in every layer.
func flatten(ctx context.Context, dst *os.File, own uint32, extents []vm.Extent, layers []*os.File) ([]vm.Extent,
	error) {
	flat := make([]vm.Extent, len(extents))
	buf := make([]byte, copyBuffer)
	for i, e := range extents {
		if e.Layer != own {
			if err := copyExtent(ctx, dst, layers[e.Layer], e, buf); err != nil {
				return nil, err
			}
		}
		e.Layer = 0
		flat[i] = e
	}
	return memlayer.Overlay(nil, flat), nil
}

// copyBuffer is the size of one copy step in bytes. It is a multiple of the page size.
const copyBuffer = 1 << 20

// copyExtent copies one extent of src to the same place in dst. It also copies zeros, because a
// layer must have no holes inside its extents. On tmpfs, the first access to a hole through a
// mapping allocates a page. If tmpfs has no room for the page, the access kills the VM.
func copyExtent(ctx context.Context, dst, src *os.File, e vm.Extent, buf []byte) error {
	for at, end := int64(e.Offset), int64(e.Offset+e.Length); at < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := buf[:min(int64(len(buf)), end-at)]
		if _, err := src.ReadAt(p, at); err != nil {
			return err
		}
		if _, err := dst.WriteAt(p, at); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}
