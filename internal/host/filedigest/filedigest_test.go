package filedigest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// sparse makes a file of the given size with some content at each of the offsets. All other bytes
// are zero. The zero bytes below the offset zeroed are written, and all other zero bytes are in
// holes.
func sparse(t *testing.T, name string, size, zeroed int64, offsets ...int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, zeroed)); err != nil {
		t.Fatal(err)
	}
	for _, at := range offsets {
		if _, err := f.WriteAt([]byte("content"), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return path
}

func digestFile(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := Of(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDigestOfHolesIsThatOfZeros(t *testing.T) {
	const size = 3<<20 + 100
	offsets := []int64{0, 5000, 1<<20 - 3, 2<<20 + 8192, size - 7}
	holes, full := sparse(t, "holes", size, 0, offsets...), sparse(t, "full", size, size, offsets...)
	want := digestFile(t, full)
	if got := digestFile(t, holes); got != want {
		t.Errorf("with holes %s, with zeros %s", got, want)
	}
	// A copy with holes at other places has the same digest.
	punched := sparse(t, "punched", size, size, offsets...)
	f, err := os.OpenFile(punched, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 3*4096,
		20*4096); err != nil {
		t.Logf("this file system punches no holes: %v", err)
	}
	if got := digestFile(t, punched); got != want {
		t.Errorf("with punched holes %s, with zeros %s", got, want)
	}
	if _, err := f.WriteAt([]byte{1}, 1<<20); err != nil {
		t.Fatal(err)
	}
	if digestFile(t, punched) == want {
		t.Error("a changed byte is not seen")
	}
}

// The computation of a digest does not read holes. If it did, this test would never end, because
// the layer is too long.
func TestDigestDoesNotReadHoles(t *testing.T) {
	const size = 1 << 42
	a := digestFile(t, sparse(t, "a", size, 0, 0, size/2, size-7))
	if b := digestFile(t, sparse(t, "b", size, 0, 0, size/2+4096, size-7)); a == b {
		t.Error("content at another place has the same digest")
	}
}

func TestDigestStopsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, bytes.Repeat([]byte{1}, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Of(ctx, f); err == nil {
		t.Error("digested for nobody")
	}
}
