package lint

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryPackageSaysWhatItIs requires exactly one package comment of at least two lines in every
// package. The comment should describe the work of the package. It should also name work that a
// reader might expect here, but that another package does.
func TestEveryPackageSaysWhatItIs(t *testing.T) {
	docs := map[string][]string{} // package comments by directory
	names := map[string]string{}
	for _, s := range sources(t) {
		dir := filepath.Dir(s.path)
		if s.test() || s.generated {
			continue
		}
		names[dir] = s.file.Name.Name
		if docs[dir] == nil {
			docs[dir] = []string{}
		}
		if s.file.Doc != nil {
			docs[dir] = append(docs[dir], s.file.Doc.Text())
		}
	}
	for dir, comments := range docs {
		if len(comments) != 1 {
			t.Errorf("%s has %d package comments, want one", dir, len(comments))
			continue
		}
		want := "Package " + names[dir] + " "
		if names[dir] == "main" {
			want = "Command " + filepath.Base(dir) + " "
		}
		if !strings.HasPrefix(comments[0], want) {
			t.Errorf("the package comment of %s does not begin with %q", dir, want)
		}
		if strings.Count(comments[0], "\n") < 2 {
			t.Errorf("the package comment of %s has one line: say what it does and what it leaves to others", dir)
		}
	}
}

// The list junk has names of packages that describe no purpose. Unrelated code collects in such
// packages.
var junk = []string{"util", "utils", "common", "types", "helpers", "helper", "base", "factory", "shared", "misc", "lib"}

func TestPackageNames(t *testing.T) {
	for _, p := range list(t) {
		last := p.path()[strings.LastIndexByte(p.path(), '/')+1:]
		if p.Name != "main" && p.Name != last {
			t.Errorf("package %s stands in directory %s", p.Name, p.path())
		}
		if slices.Contains(junk, last) || strings.ToLower(last) != last || strings.ContainsRune(last, '_') {
			t.Errorf("%s: a package is named with one lower-case noun that says what it is about", p.path())
		}
	}
}
