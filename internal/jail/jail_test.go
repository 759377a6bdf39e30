package jail

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTooManyFiles opens a directory when one descriptor is free, but no descriptor with a high
// number is free. The error must be about the number of descriptors, not about the program.
func TestTooManyFiles(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	files := []*os.File{dir, dir, dir, dir}
	fd, err := openBehind(files, dir.Name())
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: uint64(fd), Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	fd, err = openBehind(files, dir.Name())
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("descriptor %d, %v", fd, err)
	}
}
