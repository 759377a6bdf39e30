// Package chain composes the layers of a new snapshot: what it inherits from the snapshot below it,
// what a sandbox has written since, and when layers are merged so that chains stay short.
//
// It reads and writes layer files that others have made and named. What a layer looks like inside
// is package memlayer's and disklayer's; which snapshot is published when is decided by who calls.
package chain

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Bounds on what a snapshot makes those pay for that are forked from it.
const (
	MaxDepth   = 32  // layers of a snapshot; the next one is made self-contained while its sandbox runs
	MaxLine    = 16  // memory layers that a sandbox's own branches add: they live as long as it does not leave them
	MaxTops    = 16  // frozen tops of a sandbox: each is a descriptor and a bitmap in its VMM, and another place to look
	maxExtents = 256 // of a snapshot's whole memory map: each costs every fork one mmap
)

// Memory completes the memory layer own of a new snapshot over parent, the one that its pages were
// written over, and returns the snapshot's map, which is kept bounded, and the layers that it
// inherits. The extents are those of own, without their numbers, and valid by memlayer.CheckSaved. An
// error of ctx ends the copying.
func Memory(ctx context.Context, own *os.File, extents []vm.Extent, parent *store.Lease) ([]vm.Extent, []snapshot.File,
	error) {
	lower, layers := parent.Extents(), parent.Layers()
	depth := uint32(len(layers))
	for i := range extents {
		extents[i].Layer = depth
	}
	if depth >= MaxDepth {
		flat, err := flatten(ctx, own, depth, memlayer.Overlay(lower, extents), layers)
		return flat, nil, err
	}
	fill := memlayer.Coalesce(lower, extents, maxExtents)
	if err := fillGaps(ctx, own, extents, fill, lower, layers); err != nil {
		return nil, nil, err
	}
	return memlayer.Overlay(lower, memlayer.Fill(extents, fill)), slices.Clone(parent.Manifest().Memory), nil
}

// EndLine reports whether the next branch of a sandbox, which has been rebased onto so many of its
// branches in a row, takes all that it has written since its fork, and lies on the snapshot of
// that: the last of these branches has so many memory layers.
func EndLine(rebases, layers int) bool { return rebases >= MaxLine || layers >= MaxDepth }

// fillGaps copies gaps between extents of own, which are ascending, from the layers below. Where no
// layer has anything it writes zeros: see copyExtent.
func fillGaps(ctx context.Context, own *os.File, extents []vm.Extent, gaps []memlayer.Span, lower []vm.Extent,
	layers []*os.File) error {
	zeros, buf := make([]byte, copyBuffer), make([]byte, copyBuffer)
	for _, e := range extents {
		if len(gaps) == 0 {
			break
		}
		gap := gaps[0]
		if e.GPA+e.Length != gap.Start {
			continue
		}
		gaps = gaps[1:]
		at, offset := gap.Start, e.Offset-e.GPA // the gap goes on where the extent ends, in the layer too
		for _, part := range memlayer.Slice(lower, gap) {
			if err := writeZeros(ctx, own, at+offset, part.GPA-at, zeros); err != nil {
				return err
			}
			if err := copyExtent(ctx, own, layers[part.Layer], part, buf); err != nil {
				return err
			}
			at = part.GPA + part.Length
		}
		if err := writeZeros(ctx, own, at+offset, gap.Start+gap.Length-at, zeros); err != nil {
			return err
		}
	}
	return nil
}

// writeZeros writes length bytes of zeros, of which it is given some.
func writeZeros(ctx context.Context, f *os.File, at, length uint64, zeros []byte) error {
	for end := at + length; at < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.WriteAt(zeros[:min(uint64(len(zeros)), end-at)], int64(at))
		if err != nil {
			return err
		}
		at += uint64(n)
	}
	return nil
}

// MergeTops reports whether the tops of a sandbox must become one before its next snapshot, which
// inherits so many disk layers from the one below it.
func MergeTops(inherited, tops int) bool {
	return tops > MaxTops || tops > 1 && !MergeDisk(inherited) && inherited+tops > MaxDepth
}

// MergeDisk reports whether a snapshot over one with so many disk layers gets one layer in place of
// all.
func MergeDisk(inherited int) bool { return inherited >= MaxDepth }

// DiskLayers names the disk layers that a snapshot inherits: those of the one below it, and the
// tops of its sandbox but the last, which becomes its own. The owner of a top is the ID of the
// snapshot that it was frozen for.
func DiskLayers(inherited []snapshot.File, tops []*os.File, owners []string) ([]snapshot.File, error) {
	layers := slices.Clone(inherited)
	for i, f := range tops[:len(tops)-1] {
		st, err := f.Stat()
		if err != nil {
			return nil, err
		}
		layers = append(layers, snapshot.File{Owner: owners[i], Bytes: uint64(st.Size())})
	}
	return layers, nil
}

// NewTop makes an empty private disk top, with format, at path.
func NewTop(path string, size uint64, format func(*os.File, uint64) error) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create disk top: %w", err)
	}
	if err := format(f, size); err != nil {
		f.Close()
		os.Remove(path) // its name is needed again
		return nil, fmt.Errorf("create disk top: %w", err)
	}
	return f, nil
}
