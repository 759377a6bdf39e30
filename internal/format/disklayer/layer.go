// Package disklayer is the file format of one disk layer: the clusters of a disk that were written
// above an immutable base, and a bitmap that identifies them.
//
// A file is, from its beginning:
//
//	[0, size)      data, sparse, each cluster at the offset it has on the disk
//	[B, B+L)       allocation bitmap; B is size and L the bitmap's length, rounded up to ClusterSize
//	[B+L, +4096)   footer: magic, version, cluster size, disk size, CRC-32 of these; zeros
//
// In the bitmap, bit n%8 of byte n/8 is set if cluster n is in the layer. Other clusters are in
// lower layers. Open refuses a file whose length differs from the length in its footer. So it never
// mistakes the missing part of a truncated file for holes.
//
// The package handles one layer. Package internal/vmm/virtio/blk chooses the layer for a cluster,
// and copies on write.
package disklayer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"

	"golang.org/x/sys/unix"
)

// Format constants. Sizes are in bytes.
const (
	ClusterSize = 4096
	Version     = 1
	FooterSize  = 4096
	MaxSize     = 1 << 46 // largest disk: 64 TiB, whose bitmap has 2 GiB

	magic        = "FORKDLYR"
	footerLength = 8 + 4 + 4 + 8 + 4
	pageSize     = 4096 // bytes of a page of the bitmap; Layer.present has one entry for each such page
)

// ErrFormat is wrapped by errors about files that are not complete layers of this version.
var ErrFormat = errors.New("not a valid disk layer")

// Layout returns the offset and the length of the bitmap for a disk of the given size, and the
// length of the whole file.
func Layout(size uint64) (bitmapOffset, bitmapLength, fileSize uint64) {
	bitmapOffset = roundUp(size)
	bitmapLength = roundUp((bitmapOffset/ClusterSize + 7) / 8)
	return bitmapOffset, bitmapLength, bitmapOffset + bitmapLength + FooterSize
}

func roundUp(n uint64) uint64 { return (n + ClusterSize - 1) &^ (ClusterSize - 1) }

func checkSize(size uint64) error {
	if size == 0 || size > MaxSize || size%512 != 0 {
		return fmt.Errorf("disk size %d: want a positive multiple of 512 up to %d", size, uint64(MaxSize))
	}
	return nil
}

// Format makes f an empty layer of a disk of the given size in bytes. The size must be a positive
// multiple of 512. The previous content of f is deleted.
func Format(f *os.File, size uint64) error {
	if err := checkSize(size); err != nil {
		return fmt.Errorf("format disk layer %s: %w", f.Name(), err)
	}
	_, _, fileSize := Layout(size)
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("format disk layer: %w", err)
	}
	if err := f.Truncate(int64(fileSize)); err != nil {
		return fmt.Errorf("format disk layer: %w", err)
	}
	footer := encodeFooter(size)
	if _, err := f.WriteAt(footer[:], int64(fileSize-FooterSize)); err != nil {
		return fmt.Errorf("format disk layer: %w", err)
	}
	return nil
}

func encodeFooter(size uint64) (b [footerLength]byte) {
	copy(b[:], magic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], Version)
	le.PutUint32(b[12:], ClusterSize)
	le.PutUint64(b[16:], size)
	le.PutUint32(b[24:], crc32.ChecksumIEEE(b[:24]))
	return b
}

// checkFooter returns the disk size in the footer of f, after checking the footer.
func checkFooter(f *os.File) (size uint64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() < FooterSize {
		return 0, fmt.Errorf("%w: %d bytes are too short for a footer", ErrFormat, info.Size())
	}
	var b [footerLength]byte
	if _, err := f.ReadAt(b[:], info.Size()-FooterSize); err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	if string(b[:8]) != magic {
		return 0, fmt.Errorf("%w: no footer at its end: a foreign or truncated file", ErrFormat)
	}
	if v := le.Uint32(b[8:]); v != Version {
		return 0, fmt.Errorf("%w: version %d, want %d", ErrFormat, v, Version)
	}
	if le.Uint32(b[24:]) != crc32.ChecksumIEEE(b[:24]) {
		return 0, fmt.Errorf("%w: footer checksum differs", ErrFormat)
	}
	if c := le.Uint32(b[12:]); c != ClusterSize {
		return 0, fmt.Errorf("%w: cluster size %d, want %d", ErrFormat, c, ClusterSize)
	}
	size = le.Uint64(b[16:])
	if err := checkSize(size); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if _, _, want := Layout(size); uint64(info.Size()) != want {
		return 0, fmt.Errorf("%w: %d bytes long, its footer asks for %d", ErrFormat, info.Size(), want)
	}
	return size, nil
}

// Layer is an open layer. Its methods are not safe for concurrent use if one of them writes.
type Layer struct {
	file     *os.File
	size     uint64
	clusters uint64
	offset   uint64 // offset of the bitmap in the file
	bits     []byte // the bitmap, mapped shared and read-only; writes go through the file, and the mapping shows them

	// present has an entry for each page of the bitmap: false if the page is a hole of the file.
	// The bits in a hole are zero, and Layer never reads a hole through the mapping. On tmpfs such
	// a read would allocate the page, and kill the process if no memory is left.
	present []bool
}

// Open checks f and maps its bitmap. The caller closes f, after the last use of the Layer. f may be
// read-only if Set is not called.
func Open(f *os.File) (*Layer, error) {
	size, err := checkFooter(f)
	if err != nil {
		return nil, fmt.Errorf("open disk layer %s: %w", f.Name(), err)
	}
	offset, length, _ := Layout(size)
	bits, err := unix.Mmap(int(f.Fd()), int64(offset), int(length), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map bitmap of disk layer %s: %w", f.Name(), err)
	}
	l := &Layer{file: f, size: size, clusters: offset / ClusterSize, offset: offset, bits: bits,
		present: make([]bool, length/pageSize)}
	if err := l.findHoles(); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("find holes in disk layer %s: %w", f.Name(), err)
	}
	return l, nil
}

// findHoles fills l.present. For an empty layer it makes only one system call.
func (l *Layer) findHoles() error {
	end := l.offset + uint64(len(l.bits))
	for at := l.offset; at < end; {
		data, err := unix.Seek(int(l.file.Fd()), int64(at), unix.SEEK_DATA)
		if err != nil {
			return err // cannot happen, because the footer after the bitmap is data
		}
		if uint64(data) >= end {
			return nil
		}
		hole, err := unix.Seek(int(l.file.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		at = max(min(uint64(hole), end), uint64(data)+1)
		for p := (uint64(data) - l.offset) / pageSize; p*pageSize < at-l.offset; p++ {
			l.present[p] = true
		}
		at = roundUp(at)
	}
	return nil
}

// Close unmaps the bitmap. It does not close the file.
func (l *Layer) Close() error {
	err := unix.Munmap(l.bits)
	l.bits, l.present, l.clusters = nil, nil, 0
	return err
}

// File returns the layer's file, in which the data of a cluster has the same offset as on the disk.
func (l *Layer) File() *os.File { return l.file }

// Size returns the size of the disk in bytes.
func (l *Layer) Size() uint64 { return l.size }
