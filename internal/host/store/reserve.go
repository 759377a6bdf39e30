package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// reserveBytes is how many bytes of disk space the store reserves for small files, such as manifests,
// maps, records, and the network policies of sandboxes. The disks of sandboxes are on the same file
// system and grow until the file system is full. Even then the store must be able to write digests
// and to delete snapshots.
const reserveBytes = 8 << 20

func (s *Store) reserveFile() string { return filepath.Join(s.root, "reserve") }

// keepReserve allocates the reserve, if the reserve is missing and there is room. On a full disk
// the allocation may fail, and the next deletion or start tries again.
func (s *Store) keepReserve() {
	s.reserveMu.Lock()
	defer s.reserveMu.Unlock()
	if room, err := s.Room(); err != nil || room < 2*reserveBytes {
		return
	}
	f, err := os.OpenFile(s.reserveFile(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, reserveBytes)
	if errors.Join(err, f.Close()) != nil {
		_ = os.Remove(s.reserveFile()) // a reserve that is too small is useless
	}
}

// Essential calls the function write, which writes small files that are needed even on a full disk.
// If the disk is full, Essential frees the reserve and calls the function again.
func (s *Store) Essential(write func() error) error {
	err := write()
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	s.reserveMu.Lock()
	defer s.reserveMu.Unlock()
	if err := os.Remove(s.reserveFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return write()
}
