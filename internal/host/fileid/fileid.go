// Package fileid identifies versions of files, and measures how much space files take. It does not
// read files, and does not know what they are.
package fileid

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/crypt"
)

// ID identifies one version of a file. Two files have different IDs, and the ID of a file changes
// when the file changes.
type ID struct {
	Dev      uint64 `json:"dev"`
	Ino      uint64 `json:"ino"`
	Bytes    uint64 `json:"bytes"`
	ModNanos int64  `json:"mtime_ns"`
}

// Of returns the ID of an open file.
func Of(f *os.File) (ID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ID{}, err
	}
	return idOf(&st), nil
}

// OfPath returns the ID of the file at path. If there is no file, it returns the zero ID, which no
// file has.
func OfPath(path string) ID {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return ID{}
	}
	return idOf(&st)
}

// OfAny is like OfPath, for a file that may be encrypted.
func OfAny(path string) ID {
	if id := OfPath(path); id != (ID{}) {
		return id
	}
	return OfPath(path + crypt.Suffix)
}

func idOf(st *unix.Stat_t) ID {
	return ID{Dev: st.Dev, Ino: st.Ino, Bytes: uint64(st.Size), ModNanos: st.Mtim.Nano()}
}

// Blocks returns how many bytes a file, which may be encrypted, takes on disk, or 0 if it does not
// exist.
func Blocks(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil && unix.Stat(path+crypt.Suffix, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512 // st_blocks counts units of 512 bytes, stat(2)
}

// BlocksOf returns how many bytes open files take on disk. A file whose size on disk is unknown
// counts as 0.
func BlocksOf(files ...*os.File) (bytes uint64) {
	for _, f := range files {
		var st unix.Stat_t
		if unix.Fstat(int(f.Fd()), &st) == nil {
			bytes += uint64(st.Blocks) * 512 // see Blocks
		}
	}
	return bytes
}
