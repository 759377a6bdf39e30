// Package reserve keeps some space on a disk for small files that are needed even on a full disk.
//
// It does not know what the files contain.
package reserve

import (
	"errors"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Bytes is how many bytes of disk space the store reserves for small files, such as manifests,
// maps, records, and the network policies of sandboxes. The disks of sandboxes are on the same file
// system and grow until the file system is full. Even then the store must be able to write digests
// and to delete snapshots.
const Bytes = 8 << 20

// Reserve is the reserved space. Its methods may be called concurrently.
type Reserve struct {
	file string
	room func() (uint64, error)
	mu   sync.Mutex // held while the file is added or removed
}

// New returns the reserve with the given file. The Reserve calls room to learn the free bytes of
// the file's disk.
func New(file string, room func() (uint64, error)) *Reserve { return &Reserve{file: file, room: room} }

// Keep allocates the reserve, if the reserve is missing and there is room. On a full disk the
// allocation may fail. The store then tries again after the next deletion, or when the daemon
// starts again.
func (r *Reserve) Keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if room, err := r.room(); err != nil || room < 2*Bytes {
		return
	}
	f, err := os.OpenFile(r.file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, Bytes)
	if errors.Join(err, f.Close()) != nil {
		_ = os.Remove(r.file) // a partial reserve is useless
	}
}

// Essential calls the function write, which writes small files that are needed even on a full disk.
// If the disk is full, Essential frees the reserve and calls the function again.
func (r *Reserve) Essential(write func() error) error {
	err := write()
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := os.Remove(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return write()
}
