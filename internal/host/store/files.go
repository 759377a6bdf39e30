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

// open opens a regular file of the store for reading. The file may have been imported, so it is not
// trusted: below the store's directories, no part of the path may be a symbolic link, and opening a
// FIFO returns an error immediately. If the file is encrypted, open decrypts it into RAM.
func (s *Store) open(path string) (*os.File, error) {
	f, err := s.openAsIs(path)
	if errors.Is(err, fs.ErrNotExist) && s.vault != nil {
		return s.openEncrypted(path, err)
	}
	return f, err
}

// openAsIs is like open, but decrypts nothing.
func (s *Store) openAsIs(path string) (*os.File, error) {
	for _, dir := range []*os.File{s.ramDir, s.rootDir} {
		if name, ok := strings.CutPrefix(path, dir.Name()+"/"); ok {
			return private.Open(dir, name)
		}
	}
	return nil, fmt.Errorf("open %s: not in the store", path)
}

// openSized is like open, and checks that the file has the given length.
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

// openAlone is like openSized, for a file that the store never links. If the file has a second
// link, a different program has made that link, and openAlone returns an error.
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

// readBounded reads a file of at most limit bytes, which must have only one link.
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
