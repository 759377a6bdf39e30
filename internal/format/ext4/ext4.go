// Package ext4 writes an empty ext4 file system into a sparse file, without mke2fs.
//
// The result depends only on the arguments: it contains no time and no random number. It has the
// features that forkd's images have (see the feature constants), 4 KiB blocks, inodes of 256 bytes,
// one inode for every 8 KiB and no reserved blocks. Inode tables are holes of the file and are
// marked as zeroed. Without this mark, the kernel would write zeros to them later, in every child.
//
// Format makes a file system without a journal, for disks that are lost with their VM.
// FormatJournaled makes one with a journal, for disks that are used again after a VM was killed.
//
// The package writes only a root directory with lost+found, and reads no file system. A kernel in a
// VM mounts the result and fills it. Names and offsets are as in Linux,
// Documentation/filesystems/ext4.
package ext4

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// Bounds on the size of a file system, in bytes.
const (
	MinSize = 16 << 20
	MaxSize = 1 << 40
)

// Geometry of a file system.
const (
	BlockSize      = 4096
	blocksPerGroup = 8 * BlockSize // a group's bitmap is one block
	inodeSize      = 256
	inodesPerBlock = BlockSize / inodeSize
	bytesPerInode  = 8192 // bytes per inode; few, because interpreters and their packages consist of many small files
	descSize       = 64

	// The bitmaps and inode tables of each 8 consecutive groups (a flex group) are in the first of
	// these groups.
	logGroupsPerFlex = 3
	groupsPerFlex    = 1 << logGroupsPerFlex
)

// Feature flags in the superblock.
const (
	compat = 0x8 | // ext_attr
		0x20 // dir_index
	incompat = 0x2 | // filetype
		0x40 | // extents
		0x80 | // 64bit
		0x200 // flex_bg
	roCompat = 0x1 | // sparse_super
		0x2 | // large_file
		0x8 | // huge_file
		0x20 | // dir_nlink
		0x40 | // extra_isize
		0x400 // metadata_csum
)

// Flags of a group.
const (
	inodesUnused = 0x1 // INODE_UNINIT: the inode bitmap is not initialized
	blocksUnused = 0x2 // BLOCK_UNINIT: the block bitmap is not initialized
	tableZeroed  = 0x4 // INODE_ZEROED
)

// Inodes of a new file system.
const (
	rootInode      = 2
	lostFoundInode = 11
	firstInode     = 11 // the inodes before it are reserved, among them the journal's
	journalInode   = 8
	usedInodes     = lostFoundInode
)

var le = binary.LittleEndian

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crc continues a CRC-32C. Like the kernel, it does not invert the sum at the beginning and the
// end.
func crc(seed uint32, p []byte) uint32 { return ^crc32.Update(^seed, castagnoli, p) }

func crc32of(seed, v uint32) uint32 { return crc(seed, le.AppendUint32(nil, v)) }

// group is one block group.
type group struct {
	blocks      uint64 // length in blocks
	base        uint64 // number of blocks at the start with copies of the superblock and the descriptors; may be 0
	used        uint64 // number of blocks in use, which are the first blocks of the group
	blockBitmap uint64 // block number in the file system; the next two fields are block numbers too
	inodeBitmap uint64
	inodeTable  uint64
	dirs        uint16
	inodes      uint32 // inodes in use
}

type layout struct {
	blocks, size   uint64
	uuid           [16]byte
	seed           uint32 // seed of all checksums except the superblock's
	inodesPerGroup uint64
	descBlocks     uint64
	groups         []group
	root, lost     uint64 // block numbers of the root directory and of lost+found
	journal        uint64 // first block of the journal
	journalBlocks  uint64 // 0: no journal
}

// Format writes an empty file system of the given size, a multiple of BlockSize, into w. All bytes
// of w must be zero. The uuid identifies the file system and seeds its directory hashes.
func Format(w io.WriterAt, size int64, uuid [16]byte) error {
	return format(w, size, uuid, 0)
}

// FormatJournaled is like Format, but the file system has a journal. All users may write to its
// root directory, because no image says which user will use it.
func FormatJournaled(w io.WriterAt, size int64, uuid [16]byte) error {
	return format(w, size, uuid, journalBlocks(size))
}

func format(w io.WriterAt, size int64, uuid [16]byte, journal uint64) error {
	if size < MinSize || size > MaxSize || size%BlockSize != 0 {
		return fmt.Errorf("format ext4: size %d: want a multiple of %d from %d to %d", size, BlockSize, MinSize,
			int64(MaxSize))
	}
	l := newLayout(uint64(size), uuid, journal)
	if err := l.write(w); err != nil {
		return fmt.Errorf("format ext4: %w", err)
	}
	return nil
}

func newLayout(size uint64, uuid [16]byte, journal uint64) *layout {
	l := &layout{size: size, blocks: size / BlockSize, uuid: uuid, seed: crc(^uint32(0), uuid[:]),
		journalBlocks: journal}
	n := (l.blocks + blocksPerGroup - 1) / blocksPerGroup
	l.groups = make([]group, n)
	l.inodesPerGroup = roundUp((size/bytesPerInode+n-1)/n, inodesPerBlock)
	l.descBlocks = roundUp(n*descSize, BlockSize) / BlockSize
	for i := range l.groups {
		g := &l.groups[i]
		g.blocks = min(blocksPerGroup, l.blocks-uint64(i)*blocksPerGroup)
		if hasSuper(i) {
			g.base = 1 + l.descBlocks
		}
		g.used = g.base
	}
	table := l.inodesPerGroup / inodesPerBlock
	for first := 0; first < len(l.groups); first += groupsPerFlex {
		members := l.groups[first:min(first+groupsPerFlex, len(l.groups))]
		leader := first
		if need := uint64(len(members))*(2+table) + 16; l.groups[first].blocks < l.groups[first].base+need &&
			first > 0 {
			leader -= groupsPerFlex // the last flex group is too short for its tables: the previous group has them
		}
		take := func(n uint64) uint64 {
			at := uint64(leader)*blocksPerGroup + l.groups[leader].used
			l.groups[leader].used += n
			return at
		}
		for i := range members {
			members[i].blockBitmap = take(1)
		}
		for i := range members {
			members[i].inodeBitmap = take(1)
		}
		for i := range members {
			members[i].inodeTable = take(table)
		}
	}
	first := &l.groups[0]
	l.root, l.lost, l.journal = first.used, first.used+1, first.used+2
	first.used += 2 + l.journalBlocks
	first.dirs, first.inodes = 2, usedInodes
	return l
}

// hasSuper reports whether a group has a copy of the superblock and the descriptors: groups 0, 1
// and the powers of 3, 5 and 7.
func hasSuper(g int) bool {
	if g <= 1 {
		return true
	}
	for _, base := range []int{3, 5, 7} {
		p := base
		for p < g {
			p *= base
		}
		if p == g {
			return true
		}
	}
	return false
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

func (l *layout) write(w io.WriterAt) error {
	descs := make([]byte, l.descBlocks*BlockSize)
	for i := range l.groups {
		if err := l.writeGroup(w, i, descs[i*descSize:][:descSize]); err != nil {
			return err
		}
	}
	for i := range l.groups {
		if l.groups[i].base == 0 {
			continue
		}
		super := l.superblock(i)
		at := int64(i) * blocksPerGroup * BlockSize
		if i == 0 {
			at = 1024
		}
		if _, err := w.WriteAt(super, at); err != nil {
			return err
		}
		if _, err := w.WriteAt(descs, (int64(i)*blocksPerGroup+1)*BlockSize); err != nil {
			return err
		}
	}
	if err := l.writeJournal(w); err != nil {
		return err
	}
	return l.writeDirectories(w)
}

// writeGroup writes those bitmaps of a group that the kernel does not initialize itself, and fills
// the group's descriptor d.
func (l *layout) writeGroup(w io.WriterAt, i int, d []byte) error {
	g := &l.groups[i]
	flags := uint16(tableZeroed | inodesUnused)
	if g.inodes > 0 {
		flags &^= inodesUnused
		bits := bitmap(uint64(g.inodes), l.inodesPerGroup)
		if _, err := w.WriteAt(bits, int64(g.inodeBitmap)*BlockSize); err != nil {
			return err
		}
		putCRC(d, 0x1a, 0x3a, crc(l.seed, bits[:l.inodesPerGroup/8]))
	}
	// The block bitmap of the last group is always written, because no kernel would set the bits
	// beyond the end of the file system.
	if i == len(l.groups)-1 || g.used > g.base {
		bits := bitmap(g.used, g.blocks)
		if _, err := w.WriteAt(bits, int64(g.blockBitmap)*BlockSize); err != nil {
			return err
		}
		putCRC(d, 0x18, 0x38, crc(l.seed, bits))
	} else {
		flags |= blocksUnused
	}
	le.PutUint32(d[0x0:], uint32(g.blockBitmap)) // MaxSize has fewer than 2³² blocks
	le.PutUint32(d[0x4:], uint32(g.inodeBitmap))
	le.PutUint32(d[0x8:], uint32(g.inodeTable))
	le.PutUint16(d[0xc:], uint16(g.blocks-g.used))
	le.PutUint16(d[0xe:], uint16(l.inodesPerGroup-uint64(g.inodes)))
	le.PutUint16(d[0x10:], g.dirs)
	le.PutUint16(d[0x12:], flags)
	le.PutUint16(d[0x1c:], uint16(l.inodesPerGroup-uint64(g.inodes))) // inodes that were never used
	le.PutUint16(d[0x1e:], uint16(crc(crc32of(l.seed, uint32(i)), d)))
	return nil
}

// bitmap returns a block with a bitmap, given the number of items in use and the total number of
// items. It sets the bits of the items in use, which are the first items. It also sets the bits
// after the last item, which stand for no item.
func bitmap(used, total uint64) []byte {
	bits := make([]byte, BlockSize)
	for n := range uint64(8 * BlockSize) {
		if n < used || n >= total {
			bits[n/8] |= 1 << (n % 8)
		}
	}
	return bits
}

func putCRC(p []byte, low, high int, sum uint32) {
	le.PutUint16(p[low:], uint16(sum))
	le.PutUint16(p[high:], uint16(sum>>16))
}

// superblock returns the copy of the superblock that the given group contains.
func (l *layout) superblock(group int) []byte {
	var freeBlocks uint64
	for i := range l.groups {
		freeBlocks += l.groups[i].blocks - l.groups[i].used
	}
	inodes := uint64(len(l.groups)) * l.inodesPerGroup
	s := make([]byte, 1024)
	for _, f := range []struct {
		at    int
		value uint32
	}{
		{0x0, uint32(inodes)}, {0x4, uint32(l.blocks)}, {0xc, uint32(freeBlocks)}, {0x10, uint32(inodes - usedInodes)},
		{0x18, 2}, {0x1c, 2}, // log2 of the block size and of the cluster size, minus 10
		{0x20, blocksPerGroup}, {0x24, blocksPerGroup}, {0x28, uint32(l.inodesPerGroup)},
		{0x4c, 1}, // revision
		{0x54, firstInode}, {0x5c, compat}, {0x60, incompat}, {0x64, roCompat},
		{0x100, 0xc}, // default mount options: user_xattr, acl
		{0x160, 0x1}, // directory hashes treat characters as signed
	} {
		le.PutUint32(s[f.at:], f.value)
	}
	l.describeJournal(s)
	le.PutUint16(s[0x36:], 0xffff) // maximum number of mounts before a check: unlimited
	le.PutUint16(s[0x38:], 0xef53)
	le.PutUint16(s[0x3a:], 1) // state: clean
	le.PutUint16(s[0x3c:], 1) // on errors, continue
	le.PutUint16(s[0x58:], inodeSize)
	le.PutUint16(s[0x5a:], uint16(group))
	copy(s[0x68:], l.uuid[:])
	copy(s[0xec:], l.uuid[:]) // hash seed
	s[0xfc] = 1               // half MD4
	le.PutUint16(s[0xfe:], descSize)
	le.PutUint16(s[0x15c:], 32) // bytes in use in each inode, beyond the first 128
	le.PutUint16(s[0x15e:], 32)
	s[0x174] = logGroupsPerFlex
	s[0x175] = 1 // checksums are CRC-32C
	le.PutUint32(s[0x3fc:], crc(^uint32(0), s[:0x3fc]))
	return s
}

// writeDirectories writes the root and lost+found.
func (l *layout) writeDirectories(w io.WriterAt) error {
	for _, d := range []struct {
		inode uint32
		mode  uint16
		links uint16
		block uint64
		names []entry
	}{
		{rootInode, l.rootMode(), 3, l.root, []entry{{rootInode, "."}, {rootInode, ".."}, {lostFoundInode, "lost+found"}}},
		{lostFoundInode, 0o040700, 2, l.lost, []entry{{lostFoundInode, "."}, {rootInode, ".."}}},
	} {
		if _, err := w.WriteAt(directory(d.names, l.inodeSeed(d.inode)), int64(d.block)*BlockSize); err != nil {
			return err
		}
		if err := l.writeInode(w, d.inode, d.mode, d.links, d.block, 1); err != nil {
			return err
		}
	}
	return nil
}

// inodeSeed returns the seed of the checksums of an inode and of its directory blocks.
func (l *layout) inodeSeed(inode uint32) uint32 {
	return crc32of(crc32of(l.seed, inode), 0) // 0: the inode's generation
}

// writeInode writes an inode of group 0 whose content is one extent.
func (l *layout) writeInode(w io.WriterAt, inode uint32, mode, links uint16, block, blocks uint64) error {
	p := make([]byte, inodeSize)
	le.PutUint16(p[0x0:], mode)
	le.PutUint32(p[0x4:], uint32(blocks*BlockSize))
	le.PutUint16(p[0x1a:], links)
	le.PutUint32(p[0x1c:], uint32(blocks*BlockSize/512))
	le.PutUint32(p[0x20:], 0x80000) // flag EXTENTS: the inode uses extents
	putExtent(p[0x28:], block, blocks)
	le.PutUint16(p[0x80:], 32)
	putCRC(p, 0x7c, 0x82, crc(l.inodeSeed(inode), p))
	_, err := w.WriteAt(p, int64(l.groups[0].inodeTable)*BlockSize+int64(inode-1)*inodeSize)
	return err
}

// putExtent writes the root of an extent tree with one extent, as in the field i_block of an inode.
func putExtent(p []byte, block, blocks uint64) {
	le.PutUint16(p[0x0:], 0xf30a)
	le.PutUint16(p[0x2:], 1) // one extent
	le.PutUint16(p[0x4:], 4) // room for four extents
	le.PutUint16(p[0x10:], uint16(blocks))
	le.PutUint32(p[0x14:], uint32(block))
}

// rootMode returns the mode of the root directory.
func (l *layout) rootMode() uint16 {
	if l.journalBlocks > 0 { // see FormatJournaled
		return 0o040777
	}
	return 0o040755
}

type entry struct {
	inode uint32
	name  string
}

// directory returns a directory's block, with the checksum in its tail.
func directory(list []entry, seed uint32) []byte {
	const tail = 12
	p := make([]byte, BlockSize)
	at := 0
	for i, e := range list {
		size := int(roundUp(8+uint64(len(e.name)), 4))
		if i == len(list)-1 {
			size = BlockSize - tail - at
		}
		le.PutUint32(p[at:], e.inode)
		le.PutUint16(p[at+4:], uint16(size))
		p[at+6], p[at+7] = byte(len(e.name)), 2 // file type: directory
		copy(p[at+8:], e.name)
		at += size
	}
	le.PutUint16(p[at+4:], tail)
	p[at+7] = 0xde
	le.PutUint32(p[at+8:], crc(seed, p[:at]))
	return p
}
