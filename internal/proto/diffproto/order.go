package diffproto

import (
	"fmt"
	"strings"
)

// order checks that entries belong to one walk through two trees. All entries are at or below one
// path, each directory precedes its entries, and the entries of a directory are in the order of
// their names. So no path occurs twice.
type order struct {
	path  string // path of the request
	last  string // path of the previous entry
	files []above
}

// above is an entry that is not a directory on at least one of the two sides. It is the previous
// entry, or the entry of one of the directories above the previous entry.
type above struct {
	path   string
	hasOld bool // whether the old side can have files below path
	hasNew bool
}

// add returns an error if e cannot be the next entry.
func (o *order) add(e *Entry) error {
	if !IsBelow(e.Path, o.path) || o.last != "" && InOrder(e.Path) <= InOrder(o.last) {
		return fmt.Errorf("path %.100q: more than was asked for, or out of order", e.Path)
	}
	o.last = e.Path
	for len(o.files) > 0 && !IsBelow(e.Path, o.files[len(o.files)-1].path) {
		o.files = o.files[:len(o.files)-1]
	}
	if n := len(o.files); n > 0 {
		if top := o.files[n-1]; !top.hasOld && e.Old.Type != Absent || !top.hasNew && e.New.Type != Absent {
			return fmt.Errorf("path %.100q: %.100q is no directory", e.Path, top.path)
		}
	}
	if a := (above{e.Path, e.Old.Type == Directory, e.New.Type == Directory}); !a.hasOld || !a.hasNew {
		o.files = append(o.files, a)
	}
	return nil
}

// IsBelow reports whether a path is dir, or is below dir. Both paths are clean.
func IsBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// InOrder returns the key by which paths must be sorted to be in the order of a walk.
func InOrder(path string) string { return strings.ReplaceAll(path, "/", "\x00") }
