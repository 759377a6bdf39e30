package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/private"
)

// errMissing reports a missing file of a snapshot.
var errMissing = errors.New("file is missing")

// open opens a regular file of the store for reading. Files below the store's directories may come
// from an import: no part of the path below these directories may be a symbolic link, and a FIFO is
// refused at once.
func (s *Store) open(path string) (*os.File, error) {
	for _, dir := range []*os.File{s.ramDir, s.rootDir} {
		if name, ok := strings.CutPrefix(path, dir.Name()+"/"); ok {
			return private.Open(dir, name)
		}
	}
	return nil, fmt.Errorf("open %s: not in the store", path)
}

// openSized is open for a file whose length in bytes is known.
func (s *Store) openSized(path string, size uint64) (*os.File, error) {
	f, err := s.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errMissing
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && uint64(st.Size()) != size {
		err = fmt.Errorf("%d bytes: the manifest says %d (truncated, or replaced)", st.Size(), size)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openAlone is openSized for a file that the store never links. Another link to the file would
// belong to another program.
func (s *Store) openAlone(path string, size uint64) (*os.File, error) {
	f, err := s.openSized(path, size)
	if err != nil {
		return nil, err
	}
	if err := alone(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func alone(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Nlink > 1 {
		return fmt.Errorf("has %d names: make it a file of its own (a copy)", st.Nlink)
	}
	return nil
}

// readBounded reads a whole file of at most limit bytes, to which the store has no other link.
func (s *Store) readBounded(path string, limit int64) ([]byte, error) {
	f, err := s.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errMissing
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := alone(f); err != nil {
		return nil, err
	}
	p, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(p)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return p, err
}

// fileID identifies one version of a file. Another file, or the same file after a change, has
// another value.
type fileID struct {
	Dev      uint64 `json:"dev"`
	Ino      uint64 `json:"ino"`
	Bytes    uint64 `json:"bytes"`
	ModNanos int64  `json:"mtime_ns"`
}

func identify(f *os.File) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileID{}, err
	}
	return idOf(&st), nil
}

// identifyPath returns the zero fileID, which no file has, if the file does not exist.
func identifyPath(path string) fileID {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fileID{}
	}
	return idOf(&st)
}

func idOf(st *unix.Stat_t) fileID {
	return fileID{Dev: st.Dev, Ino: st.Ino, Bytes: uint64(st.Size), ModNanos: st.Mtim.Nano()}
}
