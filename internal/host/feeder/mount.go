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
	requests *os.File // the server's end
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
	// VMMs have other users than the daemon.
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

// open opens the file with the given number. The server must answer requests already.
func (m *mounted) open(n int) (*os.File, error) {
	fd, err := unix.Openat(m.root, strconv.Itoa(n), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open file %d of the FUSE file system: %w", n, err)
	}
	return os.NewFile(uintptr(fd), "fuse:"+strconv.Itoa(n)), nil
}

func (m *mounted) close() {
	_ = m.requests.Close()
	if m.root >= 0 {
		_ = unix.Close(m.root)
	}
	m.root = -1
}
