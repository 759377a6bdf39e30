package feeder

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// mounted is a FUSE file system without a mount point.
type mounted struct {
	requests *os.File // the connection to the FUSE server
	root     int      // the root directory
}

// mount makes a FUSE file system that no directory shows. Its files stay open after root is closed.
func mount() (_ *mounted, err error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	m := &mounted{requests: os.NewFile(uintptr(fd), "/dev/fuse"), root: -1}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	fs, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a FUSE file system: %w", err)
	}
	defer unix.Close(fs)
	for _, option := range [][2]string{{"source", "forkd"}, {"subtype", "forkd"}, {"fd", strconv.Itoa(fd)},
		{"rootmode", "40000"}, {"user_id", strconv.Itoa(os.Geteuid())}, {"group_id", strconv.Itoa(os.Getegid())}} {
		err = errors.Join(err, unix.FsconfigSetString(fs, option[0], option[1]))
	}
	// VMMs do not run as the daemon's user.
	err = errors.Join(err, unix.FsconfigSetFlag(fs, "allow_other"))
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return nil, fmt.Errorf("make a FUSE file system: %w", err)
	}
	const attributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if m.root, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes); err != nil {
		return nil, fmt.Errorf("mount a FUSE file system: %w", err)
	}
	return m, nil
}

// open opens the file with the given number and size. The FUSE server must already answer requests.
// The server is not trusted: instead of the file, it may offer a link to a file of the host, or a
// FIFO on which the daemon would block.
func (m *mounted) open(n int, size uint64) (_ *os.File, err error) {
	name := strconv.Itoa(n)
	fd, err := unix.Openat(m.root, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open file %d of the FUSE file system: %w", n, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || uint64(st.Size) != size) {
		err = fmt.Errorf("file %d of the FUSE file system is no regular file of %d bytes", n, size)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "fuse:"+name), nil
}

func (m *mounted) close() {
	_ = m.requests.Close()
	if m.root >= 0 {
		_ = unix.Close(m.root)
	}
	m.root = -1
}
