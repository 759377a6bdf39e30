package unpack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/ext4"
	"github.com/forkd/forkd/internal/proto/imageproto"
)

func formatted(t *testing.T, dir string, size int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := errors.Join(f.Truncate(size), ext4.Format(f, size, [16]byte{1})); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOnlyCleanDisksAreAnswered(t *testing.T) {
	f := formatted(t, t.TempDir(), 64<<20)
	if err := checkClean(f); err != nil {
		t.Errorf("a new file system: %v", err)
	}
	for _, c := range []struct {
		at    int64
		value byte
		want  string
	}{{0x3a, 0, "the state 0x0"}, {0x3a, 3, "the state 0x3"}, {0x194, 1, "found 1 errors"}} {
		old := make([]byte, 1)
		_, err := f.ReadAt(old, 1024+c.at)
		if err == nil {
			_, err = f.WriteAt([]byte{c.value}, 1024+c.at)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := checkClean(f); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("byte %#x is %d: %v, want %q", c.at, c.value, err, c.want)
		}
		if _, err := f.WriteAt(old, 1024+c.at); err != nil {
			t.Fatal(err)
		}
	}
}

// fillDisk returns an error if the kernel cannot write its cache to the device later. In this test, the device
// is a file on a file system that is too small for the data.
func TestDisksThatCannotBeWritten(t *testing.T) {
	small, mount := t.TempDir(), t.TempDir()
	if err := unix.Mount("none", small, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	for size, fails := range map[int]bool{1 << 20: false, 32 << 20: true} {
		f := formatted(t, small, 64<<20)
		device, detach := loop(t, f)
		var stream bytes.Buffer
		if err := errors.Join(imageproto.WriteHeader(&stream, imageproto.Header{Layers: make([]imageproto.Layer, 1)}),
			imageproto.WriteLayer(&stream, bytes.NewReader(archive(t, file{name: "a",
				text: strings.Repeat("x", size)})))); err != nil {
			t.Fatal(err)
		}
		err := fillDisk(device, mount, &stream)
		_ = unix.Unmount(mount, unix.MNT_DETACH) // after an error of fillDisk, the disk is still mounted
		detach()
		if (err != nil) != fails || fails && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// loop makes a block device with the content of a file.
func loop(t *testing.T, f *os.File) (device string, detach func()) {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no loop devices: %v", err)
	}
	defer control.Close()
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		t.Skipf("no loop devices: %v", err)
	}
	device = fmt.Sprint("/dev/loop", n)
	dev, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no loop devices: %v", err)
	}
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_FD, int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	return device, func() {
		_ = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0)
		dev.Close()
	}
}
