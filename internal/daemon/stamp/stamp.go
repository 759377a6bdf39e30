// Package stamp reports whether a file has changed since it was read. Other packages use it for
// files that they read again after a change: tokens, keys and certificates.
//
// It does not watch files. The user of a file compares the file's stamp before each use, reads the
// file again if it has changed, and handles the case that the file cannot be read.
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

// reliableAge is how long ago a change must be for its stamp to be reliable. A second change soon
// after the first may get the same time from the file system's clock.
const reliableAge = 2 * time.Second

// Of returns the stamp of a file. Call it before you read the file.
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

// Holds reports whether the file at path is unchanged since s was taken. It returns false if the
// last change is more recent than reliableAge.
func (s Stamp) Holds(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && s != (Stamp{}) && s == Of(fi)
}
