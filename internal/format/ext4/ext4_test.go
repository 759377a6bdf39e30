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

// passesE2fsck calls format to make file systems, and checks them with e2fsck. The sizes are in
// MiB. The file of an empty file system may take the given number of bytes more than usual.
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

// Linux mounts a file system with a journal, and after a crash it repairs the file system from the
// journal. The test simulates the crash by copying the disk while the file system is mounted.
func TestJournalIsReplayed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts a file system")
	}
	dir := t.TempDir()
	disk, crashed, mounted := filepath.Join(dir, "disk"), filepath.Join(dir, "crashed"), filepath.Join(dir, "mounted")
	f, err := os.Create(disk)
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	if err := errors.Join(f.Truncate(size), FormatJournaled(f, size, [16]byte{1}), f.Close(),
		os.Mkdir(mounted, 0o700)); err != nil {
		t.Fatal(err)
	}
	mount(t, disk, mounted)
	if info, err := os.Stat(mounted); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the root directory: %v, %v", info.Mode(), err)
	}
	name := filepath.Join(mounted, "file")
	if err := os.WriteFile(name, []byte("synced"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err = os.Open(name); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	copyDisk(t, crashed, disk)
	if err := unix.Unmount(mounted, 0); err != nil {
		t.Fatal(err)
	}
	if p, err := os.ReadFile(crashed); err != nil || le.Uint32(p[1024+0x60:])&0x4 == 0 {
		t.Fatalf("the copy does not need a recovery (%v)", err)
	}
	mount(t, crashed, mounted)
	p, err := os.ReadFile(name)
	if err := unix.Unmount(mounted, 0); err != nil {
		t.Fatal(err)
	}
	if err != nil || string(p) != "synced" {
		t.Errorf("after the recovery: %q, %v", p, err)
	}
}

// mount mounts the file system in a file, or skips the test if this host cannot mount files.
func mount(t *testing.T, disk, dir string) {
	t.Helper()
	if out, err := exec.Command("mount", "-o", "loop", "-t", "ext4", disk, dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
}

func copyDisk(t *testing.T, to, from string) {
	t.Helper()
	p, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, p, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
