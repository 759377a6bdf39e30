package store

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// If the layer of a branch's parent has as many links as the file system permits, the branch fails
// with an error that says what to do. It leaves nothing behind. As soon as one link is removed, the
// branch works.
func TestTooManyLinks(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	if err := s.WaitFlushed(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	layer := layerPath(s.dir("base"), s.byTag["base"].manifest, s.byTag["base"].manifest.ID)
	last := linkUntilFull(t, layer)
	g, err := s.Stage("child")
	if err != nil {
		t.Fatal(err)
	}
	err = complete(t, s, d, g, "base")
	if !errors.Is(err, unix.EMLINK) || !strings.Contains(err.Error(), "bake the parent again") {
		t.Errorf("a branch with no link to spare: %v", err)
	}
	g.Discard()
	if entries, err := os.ReadDir(s.staging()); err != nil || len(entries) != 0 {
		t.Errorf("left in the staging directory: %v, %v", entries, err)
	}
	if err := os.Remove(last); err != nil {
		t.Fatal(err)
	}
	publish(t, s, d, "child", "base")
	if err := s.WaitFlushed(t.Context(), "child"); err != nil {
		t.Error(err)
	}
}

// linkUntilFull makes links to a file until the file system permits no more, and returns the last
// link. It skips the test on a file system that permits more than ext4.
func linkUntilFull(t *testing.T, file string) (last string) {
	t.Helper()
	const most = 65_000
	dir := t.TempDir()
	for i := range most {
		name := filepath.Join(dir, strconv.Itoa(i))
		err := os.Link(file, name)
		if errors.Is(err, unix.EMLINK) {
			return last
		}
		if err != nil {
			t.Fatal(err)
		}
		last = name
	}
	t.Skipf("%s is on a file system that permits more than %d links to a file", file, most)
	return ""
}
