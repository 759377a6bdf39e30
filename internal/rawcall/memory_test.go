package rawcall

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMemoryOverAFile(t *testing.T) {
	page := os.Getpagesize()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	contents := bytes.Repeat([]byte{'a'}, page)
	if _, err := f.WriteAt(contents, int64(page)); err != nil {
		t.Fatal(err)
	}
	if n, err := Size(int(f.Fd())); n != int64(2*page) || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	p := make([]byte, 3*page)
	if n, err := Pread(int(f.Fd()), p, int64(page)); n != page || err != nil || !bytes.Equal(p[:n], contents) {
		t.Errorf("read %d bytes, %v", n, err)
	}

	m, err := Map(3 * page)
	if err != nil {
		t.Fatal(err)
	}
	if err := MapOver(m[page:2*page], int(f.Fd()), uint64(page)); err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, page)
	if !bytes.Equal(m, bytes.Join([][]byte{zeros, contents, zeros}, nil)) {
		t.Error("other bytes than those of the file between zeros")
	}
	m[page] = 'b'
	if n, err := Pread(int(f.Fd()), p[:1], int64(page)); n != 1 || err != nil || p[0] != 'a' {
		t.Errorf("a write to the mapping reached the file: %q, %v", p[0], err)
	}
	if err := Advise(m, unix.MADV_DONTNEED); err != nil || m[page] != 'a' {
		t.Errorf("%q, %v", m[page], err)
	}
	if err := Advise(m, -1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("advice that is none: %v", err)
	}
	if err := MapOver(m[:page], -1, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("no file: %v", err)
	}
	if err := Unmap(m); err != nil {
		t.Error(err)
	}
	if _, err := Map(0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no memory: %v", err)
	}
	if _, err := Size(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("no file: %v", err)
	}
}
