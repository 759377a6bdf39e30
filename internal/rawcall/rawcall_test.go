package rawcall

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if Exists(path) {
		t.Error("a missing file exists")
	}
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Dir(path) + strings.Repeat("/.", usualPath) + "/f"
	if !Exists(path) || !Exists(long) {
		t.Error("a file does not exist")
	}
	var info unix.Stat_t
	if err := Stat(long, &info); err != nil || info.Size != 10 {
		t.Errorf("stat: %d bytes, %v", info.Size, err)
	}
	if err := Stat(path+"-gone", &info); !errors.Is(err, unix.ENOENT) {
		t.Errorf("stat of a missing file: %v", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	if n, err := Pwrite(fd, []byte("ab"), 4); n != 2 || err != nil {
		t.Errorf("pwrite: %d, %v", n, err)
	}
	if n, err := Pwrite(fd, nil, 4); n != 0 || err != nil {
		t.Errorf("pwrite of nothing: %d, %v", n, err)
	}
	var p [4]byte
	if n, err := Pread(fd, p[:], 3); err != nil || string(p[:n]) != "3ab6" {
		t.Errorf("pread: %q, %v", p[:n], err)
	}
}

// fionbio is the ioctl request that makes a descriptor non-blocking. Its argument is a pointer to
// an int (asm-generic/ioctls.h).
const fionbio = 0x5421

func TestIoctlInt(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if err := IoctlInt(pipe[0], fionbio, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(pipe[0], make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("read from an empty pipe that does not wait: %v", err)
	}
}

func TestRandom(t *testing.T) {
	p, zero := make([]byte, 64), make([]byte, 64)
	if n, err := Random(p); n != len(p) || err != nil || bytes.Equal(p, zero) {
		t.Errorf("%d, %v: %x", n, err, p)
	}
	if n, err := Random(nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
}
