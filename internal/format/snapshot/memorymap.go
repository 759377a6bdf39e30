package snapshot

import (
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
)

// A memory.map is, little-endian:
//
//	magic    8 bytes  "FORKDMAP"
//	version  u32      1
//	extents  u32 count, then count times {gpa u64, length u64, layer u32, offset u64}
//	crc      u32      CRC-32C (Castagnoli, RFC 3720 appendix B.4) of everything before it
const (
	mapMagic   = "FORKDMAP"
	mapVersion = 1
	extentSize = 8 + 8 + 4 + 8
	mapCRCSize = 4
)

// MaxExtents bounds the extents of one snapshot. Every restore maps each extent, and one control
// message to a VMM must have room for all of them.
const MaxExtents = 32768

// MaxMemoryMap is the largest memory.map, in bytes.
const MaxMemoryMap = len(mapMagic) + 4 + 4 + MaxExtents*extentSize + mapCRCSize

// EncodeMemoryMap returns the bytes of memory.map. It refuses extents that ParseMemoryMap would
// refuse for the same sizes.
func EncodeMemoryMap(extents []vm.Extent, layerSizes []uint64, ramEnd uint64) ([]byte, error) {
	if len(extents) > MaxExtents {
		return nil, fmt.Errorf("encode memory map: %d extents: more than %d", len(extents), MaxExtents)
	}
	if err := checkMemoryMap(extents, layerSizes, ramEnd); err != nil {
		return nil, fmt.Errorf("encode memory map: %w", err)
	}
	var w codec.Writer
	w.Raw([]byte(mapMagic))
	w.U32(mapVersion)
	w.U32(uint32(len(extents)))
	for _, e := range extents {
		w.U64(e.GPA)
		w.U64(e.Length)
		w.U32(e.Layer)
		w.U64(e.Offset)
	}
	w.U32(crc(w.Bytes()))
	return w.Bytes(), nil
}

// ParseMemoryMap decodes the bytes of memory.map and checks the extents against the sizes of the
// memory layers, in bytes. The parameter ramEnd is the guest physical address after the last byte
// of RAM.
func ParseMemoryMap(p []byte, layerSizes []uint64, ramEnd uint64) ([]vm.Extent, error) {
	if len(p) > MaxMemoryMap {
		return nil, fmt.Errorf("memory map of %d bytes: more than %d", len(p), MaxMemoryMap)
	}
	if len(p) < len(mapMagic) || string(p[:len(mapMagic)]) != mapMagic {
		return nil, errors.New("memory map: wrong magic: not a forkd memory map")
	}
	r := codec.NewReader(p[len(mapMagic):])
	if v := r.U32(); r.Err() == nil && v != mapVersion {
		return nil, fmt.Errorf("memory map version %d: this forkd reads version %d", v, mapVersion)
	}
	extents := make([]vm.Extent, r.Count(extentSize))
	for i := range extents {
		extents[i] = vm.Extent{GPA: r.U64(), Length: r.U64(), Layer: r.U32(), Offset: r.U64()}
	}
	body := len(p) - r.Len()
	sum := r.U32()
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("memory map: %w", err)
	}
	if sum != crc(p[:body]) {
		return nil, errors.New("memory map: wrong checksum: the file is damaged")
	}
	if err := checkMemoryMap(extents, layerSizes, ramEnd); err != nil {
		return nil, fmt.Errorf("memory map: %w", err)
	}
	return extents, nil
}

func checkMemoryMap(extents []vm.Extent, layerSizes []uint64, ramEnd uint64) error {
	if err := memlayer.CheckExtents(extents, layerSizes); err != nil {
		return err
	}
	if n := len(extents); n > 0 && extents[n-1].GPA+extents[n-1].Length > ramEnd {
		return fmt.Errorf("extent %d ends behind guest memory (%#x)", n-1, ramEnd)
	}
	return nil
}

func crc(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }
