package main

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copySparse copies a file without its holes.
func copySparse(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	for at, end := int64(0), int64(0); ; at = end {
		at, err = in.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // a hole to the end
			return out.Truncate(info.Size())
		}
		if err != nil {
			return err
		}
		if end, err = in.Seek(at, unix.SEEK_HOLE); err != nil {
			return err
		}
		if err := copyRange(out, in, at, end-at); err != nil {
			return err
		}
	}
}

func copyRange(out, in *os.File, at, length int64) error {
	if _, err := out.Seek(at, 0); err != nil {
		return err
	}
	if _, err := in.Seek(at, 0); err != nil {
		return err
	}
	_, err := io.CopyN(out, in, length)
	return err
}
