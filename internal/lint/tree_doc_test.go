package lint

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// treeMark stands before a code block that shows a tree of folders. Each folder has a line with its
// name, a slash and a short description. The line of a folder is indented by two spaces more than
// the line of its parent.
const treeMark = "<!-- tree -->"

var treeLine = regexp.MustCompile(`^( *)([a-z0-9-]+)/(?: +\S.*)?$`)

// drawnTree returns the folders in a document's tree. The value of a folder says whether the tree
// shows any folders below this folder.
func drawnTree(t *testing.T, d document) map[string]bool {
	t.Helper()
	start := slices.Index(d.lines, treeMark)
	if start < 0 || start+1 >= len(d.lines) || d.lines[start+1] != "```" {
		t.Fatalf("%s has no %s with a code block below it", d.path, treeMark)
	}
	drawn := map[string]bool{}
	var open []string // folders above the current line, outermost first
	for i, line := range d.lines[start+2:] {
		if line == "```" {
			return drawn
		}
		m := treeLine.FindStringSubmatch(line)
		if m == nil || len(m[1])%2 != 0 || len(m[1])/2 > len(open) {
			t.Fatalf("%s:%d: %q is no line of a tree", d.path, start+3+i, line)
		}
		open = append(open[:len(m[1])/2], m[2])
		drawn[path.Join(open...)] = false
		if len(open) > 1 {
			drawn[path.Join(open[:len(open)-1]...)] = true
		}
	}
	t.Fatalf("%s: the code block below %s does not end", d.path, treeMark)
	return nil
}

// coveredBy reports whether a tree has a line for the path p. The line of a folder above p suffices
// if the tree shows no folders below that folder.
func coveredBy(drawn map[string]bool, p string) bool {
	if _, ok := drawn[p]; ok {
		return true
	}
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if below, ok := drawn[dir]; ok {
			return !below
		}
	}
	return false
}

// TestDrawnTreesAreTheTreeOnDisk compares the trees in README.md and docs/architecture.md with the
// folders on disk.
func TestDrawnTreesAreTheTreeOnDisk(t *testing.T) {
	docs := documents(t)
	pkgs := list(t)
	for _, name := range []string{"README.md", "docs/architecture.md"} {
		i := slices.IndexFunc(docs, func(d document) bool { return d.path == name })
		if i < 0 {
			t.Fatalf("there is no %s", name)
		}
		drawn := drawnTree(t, docs[i])
		for dir := range drawn {
			if info, err := os.Stat(filepath.Join(root, dir)); err != nil || !info.IsDir() {
				t.Errorf("%s draws the folder %s, which does not exist", name, dir)
			}
		}
		for _, p := range pkgs {
			if !coveredBy(drawn, p.path()) {
				t.Errorf("%s does not draw %s: add a line that says what it is", name, p.path())
			}
		}
		for _, d := range docs { // a folder without Go code must have its own document, or be listed here
			if top, _, below := strings.Cut(d.path, "/"); below && !coveredBy(drawn, top) {
				t.Errorf("%s does not draw %s", name, top)
			}
		}
		for _, top := range []string{"api", "scripts"} {
			if !coveredBy(drawn, top) {
				t.Errorf("%s does not draw %s", name, top)
			}
		}
	}
}

func TestCoveredBy(t *testing.T) {
	drawn := map[string]bool{"a": true, "a/b": false, "c": false}
	for p, want := range map[string]bool{"a": true, "a/b": true, "a/b/x": true, "a/x": false, "c/x/y": true, "d": false} {
		if coveredBy(drawn, p) != want {
			t.Errorf("coveredBy(%s) = %v", p, !want)
		}
	}
}
