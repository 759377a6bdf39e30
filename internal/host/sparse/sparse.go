// Package sparse copies and writes files with holes. The holes stay holes. The package also finds
// the parts of a memory layer that have data. It knows neither snapshots nor their directories.
package sparse

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Copy copies src to a new file with the given path. Holes in src stay holes in the new file,
// because a memory layer is as long as the guest's RAM and consists mostly of holes. On a RAM file
// system, each page that is written takes memory. After an error Copy removes the new file.
func Copy(to string, src *os.File) error { return CopyParts(to, src, nil) }

// CopyParts is like Copy, but copies only the given parts of src. The rest of the new file is a
// hole. If parts is nil, CopyParts copies all of src.
func CopyParts(to string, src *os.File, parts []Part) (err error) {
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, dst.Close()); err != nil {
			os.Remove(to)
		}
	}()
	if err := copyData(dst, src, parts); err != nil {
		return fmt.Errorf("copy %s to %s: %w", src.Name(), to, err)
	}
	return nil
}

// Part is a range of offsets in a file, in bytes.
type Part struct{ Start, End int64 }

// copyData copies the data, but not the holes, in the given parts of src. If parts is nil, copyData
// copies all data of src.
func copyData(dst, src *os.File, parts []Part) error {
	st, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(st.Size()); err != nil {
		return err
	}
	if parts == nil {
		parts = []Part{{0, st.Size()}}
	}
	for _, p := range parts {
		if err := copyPart(dst, src, p); err != nil {
			return err
		}
	}
	return nil
}

// copyPart copies the data in one part.
func copyPart(dst, src *os.File, p Part) error {
	return EachData(src, p, func(d Part) error {
		_, err := io.Copy(io.NewOffsetWriter(dst, d.Start), io.NewSectionReader(src, d.Start, d.End-d.Start))
		return err
	})
}

// EachData calls f for each range of data in one part of src, in ascending order. It skips holes,
// and moves the file's offset.
func EachData(src *os.File, p Part, f func(data Part) error) error {
	for at := p.Start; at < p.End; {
		start, err := src.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && start >= p.End { // there is no more data in the part
			return nil
		}
		if err != nil {
			return err
		}
		if at, err = src.Seek(start, unix.SEEK_HOLE); err != nil {
			return err
		}
		if err := f(Part{start, min(at, p.End)}); err != nil {
			return err
		}
	}
	return nil
}

// Punch makes holes in the file f at all offsets at which a second file (like) has holes. The
// second file has the given size. Punch moves the offset of the second file.
func Punch(f, like *os.File, size int64) error {
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	for at := int64(0); at < size; {
		hole, err := like.Seek(at, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		end, err := like.Seek(hole, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // there is no more data
			end, err = size, nil
		}
		if err != nil {
			return err
		}
		if end > hole {
			if err := unix.Fallocate(int(f.Fd()), punch, hole, end-hole); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// Finder returns a function that finds the next data of a file with holes, at or after an offset.
// If there is no more data, the error is io.EOF.
func Finder(f *os.File) func(at uint64) (start, end uint64, err error) {
	return func(at uint64) (uint64, uint64, error) {
		start, err := f.Seek(int64(at), unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return 0, 0, io.EOF
		}
		if err != nil {
			return 0, 0, err
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		return uint64(start), uint64(end), err
	}
}
