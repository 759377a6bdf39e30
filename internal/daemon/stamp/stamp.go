// Package stamp reports whether a file has changed since it was read, for files that are read again
// after a change: tokens, keys and certificates.
//
// It does not watch files: the user of a file compares its stamp before each use. It neither reads
// files nor decides what to do about a file that has become unreadable.
package stamp

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Stamp identifies one version of a file's content. The zero Stamp matches no file.
type Stamp struct {
	inode   uint64
	size    int64
	changed time.Time
	mode    fs.FileMode
}

// reliableAge is the age of a change from which the stamp is reliable. Two changes in quicker
// succession may get the same time from the file system's clock.
const reliableAge = 2 * time.Second

// Of returns the stamp of a file; take it before reading the file.
func Of(fi fs.FileInfo) Stamp {
	changed := fi.ModTime()
	if age := time.Since(changed); age < reliableAge && age > -reliableAge {
		return Stamp{}
	}
	s := Stamp{size: fi.Size(), changed: changed, mode: fi.Mode()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		s.inode = st.Ino
	}
	return s
}

// Holds reports whether the file at path is unchanged since s was taken. It returns false for a
// file that changed only just now.
func (s Stamp) Holds(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && s != (Stamp{}) && s == Of(fi)
}
