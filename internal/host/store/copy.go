package store

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyFile copies src to the new file to. Holes stay holes: a memory layer is as long as the
// guest's RAM and mostly empty, and on a RAM file system every page written is a page of the host's
// memory. An error leaves no file behind.
func copyFile(to string, src *os.File) (err error) {
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, dst.Close()); err != nil {
			os.Remove(to)
		}
	}()
	if err := copyData(dst, src); err != nil {
		return fmt.Errorf("copy %s to %s: %w", src.Name(), to, err)
	}
	return nil
}

// copyData copies the parts of src that are not holes.
func copyData(dst, src *os.File) error {
	st, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(st.Size()); err != nil {
		return err
	}
	for end := int64(0); ; {
		start, err := src.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // nothing but a hole follows
			return nil
		}
		if err != nil {
			return err
		}
		if end, err = src.Seek(start, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(dst, start), io.NewSectionReader(src, start, end-start)); err != nil {
			return err
		}
	}
}
