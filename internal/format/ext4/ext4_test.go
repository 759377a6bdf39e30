package ext4

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFormatPassesE2fsck(t *testing.T) {
	passesE2fsck(t, Format, 0, 16, 64, 127, 128, 129, 1024, 1025, 1153, 8192, 20001, 1<<20)
}

func TestJournaledFormatPassesE2fsck(t *testing.T) {
	passesE2fsck(t, FormatJournaled, BlockSize, 16, 127, 128, 129, 1024, 2049, 1<<20)
}

// passesE2fsck makes file systems of several sizes, in MiB, with format, and checks them with
// e2fsck. The file of an empty file system may take the given number of bytes more than usual.
func passesE2fsck(t *testing.T, format func(io.WriterAt, int64, [16]byte) error, more int64, sizes ...int64) {
	tool, err := exec.LookPath("e2fsck")
	if err != nil {
		if tool, err = exec.LookPath("/usr/sbin/e2fsck"); err != nil {
			t.Skip("needs e2fsck, of the Debian package e2fsprogs")
		}
	}
	for _, mib := range sizes {
		name := filepath.Join(t.TempDir(), "disk")
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		size := mib << 20
		if err := errors.Join(f.Truncate(size), format(f, size, [16]byte{1, 2, 3, 4, 5, 6, 0x87, 8,
			0x89})); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := errors.Join(unix.Fstat(int(f.Fd()), &st), f.Close()); err != nil {
			t.Fatal(err)
		}
		if used := st.Blocks * 512; used > 1<<20+mib<<10+more {
			t.Errorf("%d MiB: an empty file system takes %d bytes", mib, used)
		}
		if out, err := exec.Command(tool, "-fn", name).CombinedOutput(); err != nil {
			t.Errorf("%d MiB: %v\n%s", mib, err, out)
		}
		os.Remove(name)
	}
}

func TestFormatRefusesSizes(t *testing.T) {
	for _, size := range []int64{0, -1, MinSize - BlockSize, MinSize + 1, MaxSize + BlockSize} {
		if err := Format(nil, size, [16]byte{}); err == nil {
			t.Errorf("a size of %d passes", size)
		}
		if err := FormatJournaled(nil, size, [16]byte{}); err == nil {
			t.Errorf("a size of %d passes with a journal", size)
		}
	}
}
