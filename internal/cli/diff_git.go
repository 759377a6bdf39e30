package cli

import (
	"io"
	"path"
	"strings"
	"unicode"

	"github.com/forkd/forkd/client"
)

// withoutGit returns the files whose patches cannot change a repository's .git. For each .git, it
// writes to errs how many files with patches it has omitted. A file such as .git/hooks/pre-commit
// or .git/config lets git run programs on this host. git apply refuses such paths, but other
// programs do not.
func withoutGit(errs io.Writer, files []client.DiffFile) (kept []client.DiffFile, all bool) {
	var dirs []string
	changes := make(map[string]int) // number of omitted files, by their .git
	for _, f := range files {
		dir := gitOf(f.Path)
		switch {
		case dir == "":
			kept = append(kept, f)
		case f.Patch != "":
			if changes[dir]++; changes[dir] == 1 {
				dirs = append(dirs, dir)
			}
		}
	}
	const most = 10
	for _, dir := range dirs[:min(len(dirs), most)] {
		printf(errs, "forkd: the patch lacks %s of %s, which could let git run programs on this host\n",
			count(changes[dir], "change", "changes"), quotedPath(dir))
	}
	if n := len(dirs) - most; n > 0 {
		printf(errs, "forkd: the patch lacks the changes of %d more such directories\n", n)
	}
	return kept, len(dirs) == 0
}

// gitOf returns the beginning of a path up to its first component .git, or "" if no component is
// .git.
func gitOf(name string) string {
	dir := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		if dir = path.Join(dir, part); isGit(part) {
			return "/" + dir
		}
	}
	return ""
}

// isGit reports whether a program or file system may treat a component of a path as .git.
func isGit(part string) bool { return isSameName(part, ".git") }

// isSameName reports whether a program or file system may treat a component of a path as name. macOS ignores
// case and some invisible characters. Windows ignores the text after a colon, and dots and spaces at the end,
// and gives files short names such as git~1. GNU patch ends a name at a space.
func isSameName(part, name string) bool {
	part = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, part)
	ends := func(r rune) bool { return r == ':' || r == '\\' || unicode.IsSpace(r) }
	for _, word := range append(strings.FieldsFunc(part, ends), part) {
		if word = strings.TrimRight(word, "."); strings.EqualFold(word, name) || isShortName(word, name) {
			return true
		}
	}
	return false
}

// isShortName reports whether word can be a short name that Windows makes for the file name. Such a short
// name begins with two to six characters, then a tilde and a number. It begins with the same two characters
// as name, if the dots at the beginning of name are ignored.
func isShortName(word, name string) bool {
	base, number, found := strings.Cut(word, "~")
	name = strings.TrimLeft(name, ".")
	return found && len(base) >= 2 && len(base) <= 6 && number != "" && strings.Trim(number, "0123456789") == "" &&
		len(name) >= 2 && strings.EqualFold(base[:2], name[:2])
}
