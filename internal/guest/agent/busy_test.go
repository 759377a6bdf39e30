package agent

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "busy")
	locked := func(what string, want bool) {
		t.Helper()
		if got, err := isLocked(path, "/proc/locks"); err != nil || got != want {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	locked("a file that does not exist", false)
	for range 2 {
		if err := makeBusyFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	locked("a file without a lock", false)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, how := range []int{unix.LOCK_EX, unix.LOCK_SH} {
		if err := unix.Flock(int(f.Fd()), how); err != nil {
			t.Fatal(err)
		}
		locked("a file with a lock", true)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	locked("an unlocked file", false)

	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if makeBusyFile(link) == nil {
		t.Error("a symbolic link was followed")
	}
}
