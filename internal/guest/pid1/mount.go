package pid1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

type mountPoint struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

const hardened = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// kernelMounts are needed both before and after the switch to the root disk. devtmpfs may already
// be mounted, by EarlyLog or by the kernel itself.
func kernelMounts(root string) []mountPoint {
	return []mountPoint{
		{"devtmpfs", root + "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"proc", root + "/proc", "proc", hardened, ""},
		{"sysfs", root + "/sys", "sysfs", hardened, ""},
	}
}

// systemMounts are file systems that programs expect in addition to kernelMounts.
func systemMounts(root string) []mountPoint {
	return []mountPoint{
		{"devpts", root + "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,gid=5,ptmxmode=0666"},
		{"tmpfs", root + "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", root + "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755,size=64m"},
		{"cgroup2", root + "/sys/fs/cgroup", "cgroup2", hardened, ""},
	}
}

func mount(m mountPoint) error {
	if err := os.MkdirAll(m.target, dirMode); err != nil && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("mount %s: %w", m.target, err)
	}
	err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data)
	if err != nil && err != unix.EBUSY { // EBUSY: already mounted
		return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
	}
	return nil
}

// mountRoot mounts the root disk and the file systems inside it.
func mountRoot(opts Options) error {
	if err := os.MkdirAll(newRoot, dirMode); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	var flags uintptr = unix.MS_NOATIME // otherwise reading a file would write its access time to the sandbox's disk
	if opts.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	// "discard" returns the space of deleted files to the host, which then frees the space in the
	// layers of the disk.
	if err := unix.Mount(RootDevice, newRoot, "ext4", flags, "discard"); err != nil {
		return fmt.Errorf("mount %s as ext4: %w; is the root disk an ext4 image?", RootDevice, err)
	}
	for _, m := range append(kernelMounts(newRoot), systemMounts(newRoot)...) {
		if err := mount(m); err != nil {
			return err
		}
	}
	links := map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	}
	for name, to := range links {
		if err := os.Symlink(to, newRoot+name); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("mount root: %w", err)
		}
	}
	if !opts.ReadOnly && !exists(newRoot+"/tmp") {
		if err := os.Mkdir(newRoot+"/tmp", dirMode); err != nil {
			return fmt.Errorf("mount root: %w", err)
		}
		return os.Chmod(newRoot+"/tmp", 0o777|fs.ModeSticky)
	}
	return nil
}

// switchRoot makes the root disk the root directory of this process, with all its threads and
// future child processes. It moves the mount to /, because pivot_root(2) does not work in an
// initramfs.
func switchRoot() error {
	if err := os.Chdir(newRoot); err != nil {
		return fmt.Errorf("switch root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("switch root: move %s to /: %w", newRoot, err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("switch root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("switch root: %w", err)
	}
	return nil
}
