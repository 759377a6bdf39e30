package dirsync

import (
	"io/fs"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/forkd/forkd/internal/treetar"
)

// tempPrefix is the prefix of the names of temporary files on the host. Files with such names are
// never synced, on either side.
const tempPrefix = ".forkd-sync-"

// repositories returns patterns for the files that make a directory a repository of git or
// Mercurial. These tools execute programs that are named in a repository's files, so a guest could
// run programs on the host. For git, each directory with a file HEAD may be a repository, not only
// .git. With Options.Both, these files are excluded, unless a pattern of the options includes them.
func repositories() []string { return []string{"**/.[gG][iI][tT]", "**/.hg", "**/HEAD"} }

// goodName reports whether a relative path can be synced. The listing of a guest cannot express
// invalid UTF-8: it has U+FFFD instead. Control characters could deceive a terminal.
func goodName(rel string) bool {
	return fs.ValidPath(rel) && utf8.ValidString(rel) && !strings.ContainsFunc(rel, func(r rune) bool {
		return r == utf8.RuneError || unicode.IsControl(r)
	}) && treetar.CheckName(rel) == nil
}

// staysInside reports whether a link at the relative path rel with this target stays in the
// directory. Only the beginning of the target may have "..": after another name, which may be a
// link itself, ".." could lead anywhere.
func staysInside(rel, target string) bool {
	if target == "" || path.IsAbs(target) || !utf8.ValidString(target) || len(target) > 4095 ||
		strings.ContainsFunc(target, unicode.IsControl) {
		return false
	}
	depth, down := strings.Count(rel, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			down = true
		case down || depth == 0:
			return false
		default:
			depth--
		}
	}
	return true
}

// below reports whether the relative path rel is dir or is below dir. "." is the top.
func below(rel, dir string) bool {
	return dir == "." || rel == dir || strings.HasPrefix(rel, dir) && rel[len(dir)] == '/'
}

// drop removes the entries of a path and of everything below it.
func drop(from map[string]Entry, rel string) {
	for name := range from {
		if below(name, rel) {
			delete(from, name)
		}
	}
}
