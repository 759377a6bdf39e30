package image

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestRecipeTakesWholeDirectories(t *testing.T) {
	recipe := t.TempDir()
	write := func(name string, mode os.FileMode, text string) {
		t.Helper()
		path := filepath.Join(recipe, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("recipe.yaml", 0o600, minimal+`
files:
  - {source: app, target: /srv/app}
  - {source: tool, target: /usr/local/bin/tool}
  - {source: data, target: /srv/data, mode: 0600}
  - {source: root, target: /}
`)
	write("app/main.py", 0o640, "main")
	write("app/lib/run.sh", 0o755, "run")
	write("tool", 0o700, "tool")
	write("data/table.csv", 0o755, "1,2")
	write("root/etc/app.conf", 0o644, "conf")
	if err := os.Mkdir(filepath.Join(recipe, "app/empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("lib/run.sh", filepath.Join(recipe, "app/run")); err != nil {
		t.Fatal(err)
	}
	r, err := LoadRecipe(recipe)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range r.files {
		got = append(got, fmt.Sprintf("%c %o %s %s%s", f.typ, f.mode, f.name, f.data, f.link))
	}
	want := []string{
		"5 755 srv/app ", "5 755 srv/app/empty ", "5 755 srv/app/lib ", "0 755 srv/app/lib/run.sh run",
		"0 644 srv/app/main.py main", "2 777 srv/app/run lib/run.sh",
		"0 755 usr/local/bin/tool tool",
		"5 755 srv/data ", "0 600 srv/data/table.csv 1,2",
		"5 755 etc ", "0 644 etc/app.conf conf",
	}
	if !slices.Equal(got, want) {
		t.Errorf("files\n got %q\nwant %q", got, want)
	}
}

func TestRecipeFilesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		files []File
		want  string
	}{
		"nothing there":  {[]File{{Source: "no", Target: "/x"}}, "files[0]: source: "},
		"file onto root": {[]File{{Source: "d/a", Target: "/"}}, "files[0]: target: "},
		"hidden":         {[]File{{Source: "r", Target: "/"}}, `files[0]: target: "/tmp" is hidden`},
		"twice": {[]File{{Source: "d", Target: "/x"}, {Source: "d/a", Target: "/x/a"}},
			`files[1]: target: "/x/a" appears twice`},
		"file for directory": {[]File{{Source: "d", Target: "/x"}, {Source: "d/a", Target: "/x"}},
			`files[1]: target: "/x" appears twice`},
		"device": {[]File{{Source: "odd", Target: "/x"}}, "odd/fifo is neither"},
	} {
		fsys := fstest.MapFS{"d/a": {}, "r/tmp/x": {}, "odd/fifo": {Mode: os.ModeNamedPipe}}
		_, err := readFiles(fsys, c.files)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
