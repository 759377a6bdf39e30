package imageproto

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A finished disk is sent to a client as records, in the order of their offsets:
//
//	offset (8 bytes, little-endian), length (4 bytes, little-endian), that many bytes
//
// Bytes of the disk that no record covers are zero. The last record has the disk's size as its
// offset, and a length of 0.

const recordHead = 8 + 4

// WriteDisk writes the records of a disk to w. The parameter f is the disk's file, which may be
// sparse, and the parameter size is the disk's size in bytes.
func WriteDisk(w io.Writer, f *os.File, size int64) error {
	buf := make([]byte, recordHead+maxChunk)
	record := func(at int64, n int) error {
		binary.LittleEndian.PutUint64(buf, uint64(at))
		binary.LittleEndian.PutUint32(buf[8:], uint32(n))
		_, err := w.Write(buf[:recordHead+n])
		return err
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO || err == nil && data >= size {
			break
		}
		if err != nil {
			return fmt.Errorf("find the data of %s: %w", f.Name(), err)
		}
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find the data of %s: %w", f.Name(), err)
		}
		for at = data; at < min(hole, size); {
			n := int(min(maxChunk, min(hole, size)-at))
			if _, err := f.ReadAt(buf[recordHead:][:n], at); err != nil {
				return err
			}
			if err := record(at, n); err != nil {
				return err
			}
			at += int64(n)
		}
	}
	return record(size, 0)
}

// ReadDisk reads the records that WriteDisk wrote, and writes the disk to the file f, which must be
// empty. The parameter size is the disk's size in bytes.
func ReadDisk(f *os.File, r io.Reader, size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	var head [recordHead]byte
	buf := make([]byte, maxChunk)
	for last := int64(0); ; {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return fmt.Errorf("read disk: %w", whole(err))
		}
		at, n := binary.LittleEndian.Uint64(head[:]), binary.LittleEndian.Uint32(head[8:])
		if n == 0 && at == uint64(size) {
			return nil
		}
		if at < uint64(last) || at > uint64(size) || n == 0 || n > maxChunk || int64(n) > size-int64(at) {
			return fmt.Errorf("read disk: a record of %d bytes at %d, after %d, of a disk of %d", n, at, last, size)
		}
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return fmt.Errorf("read disk: %w", whole(err))
		}
		if _, err := f.WriteAt(buf[:n], int64(at)); err != nil {
			return err
		}
		last = int64(at) + int64(n)
	}
}
