package store

import (
	"errors"
	"github.com/forkd/forkd/internal/host/fileid"
	"github.com/forkd/forkd/internal/host/reserve"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a small file system at a new directory.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// If the disk is full, digests can still be written, and snapshots can be deleted. Afterwards the
// store has its reserve again.
func TestFullDiskLeavesRoomForManifests(t *testing.T) {
	disk := smallDisk(t, "size=40m,mode=700")
	d := newDirs(t)
	d.root = filepath.Join(disk, "state")
	s := d.open(t)
	publish(t, s, d, "a", "")
	publish(t, s, d, "b", "a")
	if err := s.WaitFlushed(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if got := fileid.Blocks(filepath.Join(s.root, "reserve")); got < reserve.Bytes {
		t.Fatalf("the reserve takes %d bytes, want %d", got, reserve.Bytes)
	}
	top := filepath.Join(disk, "top of a sandbox")
	fill(t, top)
	for _, tag := range []string{"a", "b"} {
		if err := s.seal(t.Context(), tag); err != nil {
			t.Errorf("seal %s on a full disk: %v", tag, err)
		}
	}
	// repeat, because the sealer may be writing too
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		left, _ := os.ReadDir(s.dir("a"))
		if len(left) == 5 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("files of the snapshot: %v", left)
		}
	}
	if err := os.Remove(top); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete("a", DeleteCascade); err != nil {
		t.Fatal(err)
	}
	if got := fileid.Blocks(filepath.Join(s.root, "reserve")); got < reserve.Bytes {
		t.Errorf("after a deletion the reserve takes %d bytes, want %d", got, reserve.Bytes)
	}
}
