package store

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyFile copies src to the new file to, with its holes. A memory layer is as long as the guest's
// RAM and mostly empty, and on a RAM file system every written page takes a page of the host's
// memory. After an error no file is left behind.
func copyFile(to string, src *os.File) error { return copyParts(to, src, nil) }

// copyParts is copyFile for parts of src; nil: all of it. The rest becomes a hole.
func copyParts(to string, src *os.File, parts []part) (err error) {
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

// part is a piece of a file, in bytes.
type part struct{ start, end int64 }

// copyData copies the data in parts of src, without holes; nil: all of it.
func copyData(dst, src *os.File, parts []part) error {
	st, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(st.Size()); err != nil {
		return err
	}
	if parts == nil {
		parts = []part{{0, st.Size()}}
	}
	for _, p := range parts {
		if err := copyPart(dst, src, p); err != nil {
			return err
		}
	}
	return nil
}

// copyPart copies the data in one part.
func copyPart(dst, src *os.File, p part) error {
	for at := p.start; at < p.end; {
		start, err := src.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && start >= p.end { // only a hole follows
			return nil
		}
		if err != nil {
			return err
		}
		if at, err = src.Seek(start, unix.SEEK_HOLE); err != nil {
			return err
		}
		n := min(at, p.end) - start
		if _, err := io.Copy(io.NewOffsetWriter(dst, start), io.NewSectionReader(src, start, n)); err != nil {
			return err
		}
	}
	return nil
}
