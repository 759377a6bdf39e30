package cli

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A file counts as a leftover only if it is old, belongs to the user, has a known name, and is not
// open in any process.
func TestLeftoversAreInNoUse(t *testing.T) {
	dir := t.TempDir()
	make := func(names ...string) {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	make("forkd-fork-old", "forkd-fork-open", "forkd-fork-socket", "forkd-run-1000", "other")
	f, err := os.Open(filepath.Join(dir, "forkd-fork-open/file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := net.Listen("unix", filepath.Join(dir, "forkd-fork-socket/s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	kept := filepath.Join(dir, "other/file")
	if err := os.Symlink(filepath.Dir(kept), filepath.Join(dir, "forkd-fork-link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(kept, filepath.Join(dir, "forkd-fork-old/link")); err != nil {
		t.Fatal(err)
	}
	in := []place{{"test", dir, []string{"forkd-fork-*"}}, {"none", filepath.Join(dir, "none"), []string{"*"}}}
	if list, err := findLeftovers(in, time.Now().Add(-time.Hour)); err != nil || len(list) != 0 {
		t.Errorf("young: %+v, %v", list, err)
	}
	list, err := findLeftovers(in, time.Now().Add(time.Hour))
	if err != nil || len(list) != 1 || list[0].Path != filepath.Join(dir, "forkd-fork-old") || list[0].Bytes == 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := list[0].remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(list[0].Path); !os.IsNotExist(err) {
		t.Errorf("is still there: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what it linked to: %v", err)
	}
}
