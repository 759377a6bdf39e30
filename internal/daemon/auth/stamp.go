package auth

import (
	"io/fs"
	"syscall"
	"time"
)

// stamp tells one content of a file from the next. The zero stamp is that of no content.
type stamp struct {
	inode   uint64
	size    int64
	changed time.Time
	mode    fs.FileMode
}

// settled is how old a change must be before a file is not read again: an earlier one may be
// followed by another that the file system's clock gives the same time.
const settled = 2 * time.Second

func stampOf(fi fs.FileInfo) stamp {
	changed := fi.ModTime()
	if age := time.Since(changed); age < settled && age > -settled {
		return stamp{}
	}
	s := stamp{size: fi.Size(), changed: changed, mode: fi.Mode()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		s.inode = st.Ino
	}
	return s
}
