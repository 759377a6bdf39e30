package difftree

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// Fields of ext4's super block and of its block group descriptors (Documentation/filesystems/ext4).
const (
	superBlock      = 1024 // offset of the super block, and its length
	magic           = 0xef53
	incompatMetaBG  = 0x10
	incompat64Bit   = 0x80
	leastDescriptor = 32
	leastInode      = 128
)

// Bounds on the file systems that are compared by their inodes. No disk of forkd reaches them.
const (
	maxGroups = 1 << 20
	maxInodes = 1 << 29
	maxRanges = 1 << 20
)

// geometry says where the inodes of an ext4 file system are.
type geometry struct {
	block     uint64   // bytes of a block
	inodeSize uint64   // bytes of an inode
	perGroup  uint64   // number of inodes in a group
	tables    []uint64 // offset of the inodes of each group, in bytes
}

// geometryOf reads the geometry of the file system on a disk. The disk may contain any bytes.
func geometryOf(disk io.ReaderAt) (g geometry, err error) {
	var super [superBlock]byte
	if _, err := disk.ReadAt(super[:], superBlock); err != nil {
		return g, err
	}
	le := binary.LittleEndian
	u32 := func(at int) uint64 { return uint64(le.Uint32(super[at:])) }
	incompat, logBlock := u32(0x60), u32(0x18)
	if le.Uint16(super[0x38:]) != magic || logBlock > 6 || incompat&incompatMetaBG != 0 {
		return g, errors.New("not an ext4 file system of the usual form")
	}
	block := uint64(1024) << logBlock
	g.block = block
	blocks, first, blocksPerGroup := u32(0x4), u32(0x14), u32(0x20)
	descriptor := uint64(leastDescriptor)
	if incompat&incompat64Bit != 0 {
		blocks |= u32(0x150) << 32
		descriptor = uint64(le.Uint16(super[0xfe:]))
	}
	g.inodeSize, g.perGroup = uint64(le.Uint16(super[0x58:])), u32(0x28)
	switch {
	case descriptor < leastDescriptor || descriptor > 1024, blocksPerGroup == 0, blocks <= first, blocks > 1<<48,
		g.inodeSize < leastInode || g.inodeSize > block || block%g.inodeSize != 0, g.perGroup == 0 || g.perGroup > 1<<20:
		return g, errors.New("an ext4 file system with impossible sizes")
	}
	groups := (blocks - first + blocksPerGroup - 1) / blocksPerGroup
	if groups > maxGroups || groups*g.perGroup > maxInodes {
		return g, fmt.Errorf("an ext4 file system with %d groups of %d inodes", groups, g.perGroup)
	}
	table := make([]byte, groups*descriptor)
	if _, err := disk.ReadAt(table, int64((first+1)*block)); err != nil {
		return g, err
	}
	g.tables = make([]uint64, groups)
	for i := range g.tables {
		d := table[uint64(i)*descriptor:]
		at := uint64(le.Uint32(d[0x8:]))
		if descriptor >= 64 {
			at |= uint64(le.Uint32(d[0x28:])) << 32
		}
		if at >= blocks {
			return g, errors.New("an ext4 file system with inodes behind its end")
		}
		g.tables[i] = at * block
	}
	return g, nil
}

// equal reports whether all inodes have the same place in both geometries.
func (g *geometry) equal(h *geometry) bool {
	return g.block == h.block && g.inodeSize == h.inodeSize && g.perGroup == h.perGroup && slices.Equal(g.tables, h.tables)
}

// changes is the set of inodes that differ between two disks.
type changes struct {
	bits []byte // nil: unknown, so that all inodes may differ
	n    int    // number of inodes in the set

	// sameData, if set, reports whether a file that has this inode on both disks is known to have the same
	// data on both.
	sameData func(inode uint64) bool
}

// has reports whether an inode may differ.
func (c *changes) has(inode uint64) bool {
	return c.bits == nil || inode/8 >= uint64(len(c.bits)) || c.bits[inode/8]&(1<<(inode%8)) != 0
}

// table describes the part of a disk that has the inodes of a group: the offsets of the part, and
// the number of its first inode.
type table struct{ start, end, first uint64 }

// finder finds the inodes that differ.
type finder struct {
	disks  [2]io.ReaderAt
	size   uint64  // bytes of an inode
	block  uint64  // bytes of a block
	tables []table // ascending by start
	found  changes
	ranges []diffproto.Range // parts that may differ; nil if they are not in ascending order, or too many
	buf    [2][]byte
}

// newFinder returns a finder, or an error if an inode number can mean different places on the two disks.
func newFinder(old, now io.ReaderAt) (*finder, error) {
	a, err := geometryOf(old)
	if err != nil {
		return nil, err
	}
	b, err := geometryOf(now)
	if err != nil {
		return nil, err
	}
	if !a.equal(&b) {
		return nil, errors.New("the file systems have their inodes at different places")
	}
	f := &finder{disks: [2]io.ReaderAt{old, now}, size: a.inodeSize, block: a.block,
		ranges: []diffproto.Range{}}
	f.found.sameData = f.sameData
	for i, start := range a.tables {
		f.tables = append(f.tables, table{start, start + a.perGroup*a.inodeSize, uint64(i)*a.perGroup + 1})
	}
	slices.SortFunc(f.tables, func(a, b table) int { return cmp.Compare(a.start, b.start) })
	f.found.bits = make([]byte, (uint64(len(a.tables))*a.perGroup)/8+1)
	// The size is a multiple of every block size, so a buffer holds whole blocks and whole inodes.
	f.buf = [2][]byte{make([]byte, 64<<10), make([]byte, 64<<10)}
	return f, nil
}

// add compares the inodes in a range of the disks.
func (f *finder) add(v diffproto.Range) error {
	last := end(v)
	if last < v.Offset {
		return fmt.Errorf("a range of %d bytes at %d", v.Length, v.Offset)
	}
	if len(f.ranges) > 0 && v.Offset < end(f.ranges[len(f.ranges)-1]) || len(f.ranges) == maxRanges {
		f.ranges = nil
	}
	if f.ranges != nil {
		f.ranges = append(f.ranges, v)
	}
	i, _ := slices.BinarySearchFunc(f.tables, v.Offset, func(t table, at uint64) int { return cmp.Compare(t.end, at+1) })
	for ; i < len(f.tables) && f.tables[i].start < last; i++ {
		t := f.tables[i]
		from := (max(v.Offset, t.start) - t.start) / f.size * f.size
		to := (min(last, t.end) - t.start + f.size - 1) / f.size * f.size
		for at := from; at < to; at += uint64(len(f.buf[0])) {
			if err := f.compare(t, at, min(to-at, uint64(len(f.buf[0])))); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare compares n bytes of the inodes in a table, from the given offset in the table.
func (f *finder) compare(t table, at, n uint64) error {
	for i, disk := range f.disks {
		if _, err := disk.ReadAt(f.buf[i][:n], int64(t.start+at)); err != nil {
			return fmt.Errorf("read the inodes of a disk: %w", err)
		}
	}
	if bytes.Equal(f.buf[0][:n], f.buf[1][:n]) {
		return nil
	}
	for o := uint64(0); o < n; o += f.size {
		if bytes.Equal(f.buf[0][o:o+f.size], f.buf[1][o:o+f.size]) {
			continue
		}
		inode := t.first + (at+o)/f.size
		if f.found.bits[inode/8]&(1<<(inode%8)) == 0 {
			f.found.bits[inode/8] |= 1 << (inode % 8)
			f.found.n++
		}
	}
	return nil
}

// end returns the end of a range.
func end(v diffproto.Range) uint64 { return v.Offset + v.Length }

// touched reports whether a part of the disks may differ.
func (f *finder) touched(v diffproto.Range) bool {
	i, _ := slices.BinarySearchFunc(f.ranges, v.Offset, func(r diffproto.Range, at uint64) int {
		return cmp.Compare(end(r), at+1)
	})
	return i < len(f.ranges) && f.ranges[i].Offset < end(v)
}

// Fields of an inode, and of the root of its extents.
const (
	inodeFlags   = 0x20
	inodeRoot    = 0x28 // root of the extents
	inodeRootEnd = 0x64
	flagExtents  = 0x80000
	extentMagic  = 0xf30a
	extentSize   = 12
	extentsMost  = 4      // number of extents in an inode
	extentLong   = 0x8000 // an extent with a greater length is not initialized, and reads as zeros
)

// sameData reports whether an inode has the same extents on both disks, and whether the data in
// these extents is known to be equal. Usually this is true if only the mode or owner of a file has
// changed, so its data need not be read. For a file with more than four extents, sameData returns
// false.
func (f *finder) sameData(inode uint64) bool {
	if f.ranges == nil {
		return false
	}
	perGroup := (f.tables[0].end - f.tables[0].start) / f.size
	i := slices.IndexFunc(f.tables, func(t table) bool { return t.first <= inode && inode < t.first+perGroup })
	if i < 0 {
		return false
	}
	at := f.tables[i].start + (inode-f.tables[i].first)*f.size
	for i, disk := range f.disks {
		if _, err := disk.ReadAt(f.buf[i][:f.size], int64(at)); err != nil {
			return false
		}
	}
	old, now := f.buf[0][:f.size], f.buf[1][:f.size]
	le := binary.LittleEndian
	root := old[inodeRoot:inodeRootEnd]
	n := int(le.Uint16(root[2:]))
	if !bytes.Equal(root, now[inodeRoot:inodeRootEnd]) || le.Uint32(old[inodeFlags:]) != le.Uint32(now[inodeFlags:]) ||
		le.Uint32(old[inodeFlags:])&flagExtents == 0 || le.Uint16(root) != extentMagic || le.Uint16(root[6:]) != 0 ||
		n > extentsMost {
		return false
	}
	for i := range n {
		e := root[extentSize*(i+1):]
		length := uint64(le.Uint16(e[4:]))
		if length > extentLong {
			length -= extentLong
		}
		start := uint64(le.Uint16(e[6:]))<<32 | uint64(le.Uint32(e[8:]))
		if f.touched(diffproto.Range{Offset: start * f.block, Length: length * f.block}) {
			return false
		}
	}
	return true
}
