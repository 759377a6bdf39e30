// Package chain composes the layers of a new snapshot from the layers of its parent snapshot and
// the layers that a sandbox has written since. It also decides when layers are merged, because a
// snapshot must not have too many layers. It reads and writes existing layer files, whose formats
// are in packages memlayer and disklayer. The caller decides which snapshot is published, and when.
//
// A layer has the memory or the disk blocks that one snapshot adds to those of its parent. An
// extent is a range of guest memory with the position of its bytes in a layer. A top is a disk
// layer of a running sandbox: the sandbox writes to its last top, and each branch freezes that top
// and adds an empty one. A line is a series of branches of one sandbox, in which the memory layer
// of each branch builds on the layer of the previous branch.
package chain

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Limits on layers, tops and extents. Too many of them would make forks of a snapshot slow or
// large.
const (
	MaxDepth   = 32  // maximum number of layers of a snapshot; a snapshot that would have more gets one merged layer
	MaxLine    = 16  // maximum number of memory layers in a sandbox's line; see EndLine
	maxRewrite = 2   // maximum size of a line's layers, which stay in RAM, as a multiple of the guest's memory
	MaxTops    = 16  // maximum number of a sandbox's frozen tops: each costs the VMM a descriptor, a bitmap and a lookup
	maxExtents = 256 // maximum number of extents in a snapshot's memory map: each costs every fork one mmap
)

// Memory completes the memory layer of a new snapshot, given the layer's file. The file holds the
// pages that were written after the parent snapshot was made. These pages are listed in extents.
// Memory returns the memory map of the new snapshot, and the layers that the snapshot inherits.
//
// To limit the number of extents, Memory copies some pages from the parent's layers to the new
// layer. If the parent already has MaxDepth layers, Memory copies all pages that the new layer
// lacks, and the new snapshot inherits no layers. The given extents have no layer numbers yet. The
// caller has checked them with memlayer.CheckSaved. If ctx ends, Memory stops and returns ctx's
// error.
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

// EndLine reports whether the next branch of a sandbox ends its line. A branch that ends the line
// builds on the snapshot that the sandbox was forked from, and holds all pages written since the
// fork. The parameter rebased is the branch that the sandbox was last rebased onto, or nil. The
// guest's memory has the given size. EndLine also returns the disk usage of the layers in the line,
// in bytes.
func EndLine(st *store.Store, rebased *record.Rebased, memory uint64) (end bool, bytes uint64) {
	if rebased == nil {
		return false, 0
	}
	layers, bytes := st.Line(rebased.ID)
	return rebased.Line >= MaxLine || layers >= MaxDepth || bytes > maxRewrite*memory, bytes
}

// LineBytes returns the maximum number of bytes that a sandbox shares with the branches in its
// line. The first lease is for the latest branch, and the second lease is for the snapshot from
// which the sandbox runs. LineBytes counts the memory for which the branch has a layer that the
// snapshot does not have.
func LineBytes(line, from *store.Lease) (bytes uint64) {
	inherited := from.Manifest().Memory
	for _, e := range line.Extents() {
		layer := line.Manifest().Memory[e.Layer]
		if !slices.ContainsFunc(inherited, func(l snapshot.File) bool { return l.Owner == layer.Owner }) {
			bytes += e.Length
		}
	}
	return bytes
}

// fillGaps fills gaps between the extents of a layer (the file own) with data from the layers
// below, so that neighboring extents join. Where no layer has data, fillGaps writes zeros, for the
// reason given at copyExtent.
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
		// A gap begins where extent e ends, both in guest memory and in the layer.
		at, offset := gap.Start, e.Offset-e.GPA
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

// writeZeros writes the given number of zeros to a file, from the given offset. The buffer zeros
// contains only zeros.
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

// MergeTops reports whether a sandbox's tops must be merged before its next snapshot. The parameter
// inherited is the number of disk layers that the snapshot inherits, and tops is the number of the
// sandbox's tops.
func MergeTops(inherited, tops int) bool {
	return tops > MaxTops || tops > 1 && !MergeDisk(inherited) && inherited+tops > MaxDepth
}

// MergeDisk reports whether all disk layers of a snapshot must be merged into one, because the
// snapshot would otherwise inherit too many layers.
func MergeDisk(inherited int) bool { return inherited >= MaxDepth }

// DiskLayers returns the disk layers that a new snapshot of a sandbox inherits. These are the given
// inherited layers, which belong to the parent snapshot, and all tops of the sandbox except the
// last top. The last top becomes the new snapshot's own layer. For each top, owners has the ID of
// the snapshot for which the top was frozen.
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

// NewTop makes an empty private disk top at path. It calls format, which writes the empty layer.
func NewTop(path string, size uint64, format func(*os.File, uint64) error) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create disk top: %w", err)
	}
	if err := format(f, size); err != nil {
		f.Close()
		os.Remove(path) // a later NewTop may need the name
		return nil, fmt.Errorf("create disk top: %w", err)
	}
	return f, nil
}
