package sparse

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCopyKeepsHoles(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	f, err := os.Create(from)
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{0, 1 << 20, size - 4096} {
		if _, err := f.WriteAt(bytes.Repeat([]byte{7}, 4096), off); err != nil {
			t.Fatal(err)
		}
	}
	defer f.Close()
	if err := Copy(to, f); err != nil {
		t.Fatal(err)
	}
	a, err1 := os.ReadFile(from)
	b, err2 := os.ReadFile(to)
	if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
		t.Errorf("the copy differs (%v, %v)", err1, err2)
	}
	var was, is unix.Stat_t
	if err := errors.Join(unix.Stat(from, &was), unix.Stat(to, &is)); err != nil {
		t.Fatal(err)
	}
	if got, limit := is.Blocks*512, was.Blocks*512+1<<20; got > limit {
		t.Errorf("the copy takes %d bytes, want at most %d", got, limit)
	}
}

func TestFailedCopyLeavesNothing(t *testing.T) {
	to := filepath.Join(t.TempDir(), "to")
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := Copy(to, dir); err == nil {
		t.Error("a directory was copied")
	}
	if _, err := os.Stat(to); !os.IsNotExist(err) {
		t.Errorf("a file is left: %v", err)
	}
}
