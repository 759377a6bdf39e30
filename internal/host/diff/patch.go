package diff

import (
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// Patch returns an entry as a part of a patch for git apply. The patch may name files in .git,
// because git apply refuses to change these. The result is empty for differences that such a patch
// cannot express: directories, devices, owners and extended attributes.
func Patch(e *diffproto.Entry) string {
	if !inPatch(e.Old.Type) || !inPatch(e.New.Type) {
		return ""
	}
	if e.Old.Type != e.New.Type && e.Old.Type != diffproto.Absent && e.New.Type != diffproto.Absent {
		return "" // a file has become a symbolic link, or a symbolic link has become a file
	}
	path := strings.TrimPrefix(e.Path, "/")
	old, now := quoted("a/"+path), quoted("b/"+path)
	var p strings.Builder
	fmt.Fprintf(&p, "diff --git %s %s\n", old, now)
	switch {
	case e.Old.Type == diffproto.Absent:
		fmt.Fprintf(&p, "new file mode %s\n", gitMode(&e.New))
		old = "/dev/null"
	case e.New.Type == diffproto.Absent:
		fmt.Fprintf(&p, "deleted file mode %s\n", gitMode(&e.Old))
		now = "/dev/null"
	case gitMode(&e.Old) != gitMode(&e.New):
		fmt.Fprintf(&p, "old mode %s\nnew mode %s\n", gitMode(&e.Old), gitMode(&e.New))
	case !e.Content:
		return ""
	}
	hunks := string(e.Patch)
	if e.Old.Type == diffproto.Symlink || e.New.Type == diffproto.Symlink {
		hunks = linkHunk(e)
	}
	switch {
	case !e.Content || e.Omitted == diffproto.NotAsked:
	case e.Omitted != diffproto.NotOmitted:
		fmt.Fprintf(&p, "Binary files %s and %s differ\n", old, now)
	case hunks != "":
		fmt.Fprintf(&p, "--- %s\n+++ %s\n%s", old, now, hunks)
	}
	return p.String()
}

// inPatch reports whether a patch can contain a file of type t. The result for Absent is true.
func inPatch(t diffproto.Type) bool {
	return t == diffproto.Absent || t == diffproto.Regular || t == diffproto.Symlink
}

// gitMode returns the mode of a file as git writes it. Of the permissions, git keeps only whether the
// owner may execute the file.
func gitMode(n *diffproto.Node) string {
	switch {
	case n.Type == diffproto.Symlink:
		return "120000"
	case n.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

// linkHunk returns the hunk for the target of a symbolic link. In a patch, the target is a line without a
// line end.
func linkHunk(e *diffproto.Entry) string {
	const end = "\n\\ No newline at end of file\n"
	if strings.Contains(e.Old.Target+e.New.Target, "\n") || e.Old.Target == e.New.Target {
		return ""
	}
	old, now := "0,0", "0,0"
	var text string
	if e.Old.Type != diffproto.Absent {
		old, text = "1", "-"+e.Old.Target+end
	}
	if e.New.Type != diffproto.Absent {
		now, text = "1", text+"+"+e.New.Target+end
	}
	return fmt.Sprintf("@@ -%s +%s @@\n%s", old, now, text)
}

// quoted returns a path as git prints it. If the path has quotes, backslashes, control characters
// or bytes outside ASCII, the result is a C string literal.
func quoted(path string) string {
	plain := true
	var p strings.Builder
	p.WriteByte('"')
	for _, c := range []byte(path) {
		switch {
		case c == '"' || c == '\\':
			p.WriteByte('\\')
			p.WriteByte(c)
		case c >= ' ' && c < 0x7f:
			p.WriteByte(c)
			continue
		default:
			fmt.Fprintf(&p, "\\%03o", c)
		}
		plain = false
	}
	if plain {
		return path
	}
	p.WriteByte('"')
	return p.String()
}
