// Package stamp tells whether a file has changed since it was read, for files that are read again
// when they have: tokens, keys and certificates.
//
// Nobody waits for changes: whoever uses a file compares its stamp before. It neither reads files
// nor decides what to do about one that has become unreadable.
package stamp

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Stamp tells one content of a file from the next. The zero Stamp is that of no content.
type Stamp struct {
	inode   uint64
	size    int64
	changed time.Time
	mode    fs.FileMode
}

// settled is how old a change must be before a file is not read again: an earlier one may be
// followed by another that the file system's clock gives the same time.
const settled = 2 * time.Second

// Of returns the stamp of a file, from before it is read.
func Of(fi fs.FileInfo) Stamp {
	changed := fi.ModTime()
	if age := time.Since(changed); age < settled && age > -settled {
		return Stamp{}
	}
	s := Stamp{size: fi.Size(), changed: changed, mode: fi.Mode()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		s.inode = st.Ino
	}
	return s
}

// Holds reports whether the file at path is the one of which s was taken. It never does for a file
// that has changed just now.
func (s Stamp) Holds(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && s != (Stamp{}) && s == Of(fi)
}
