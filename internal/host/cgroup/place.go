package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ownName is the name of the cgroup into which the daemon moves itself, below the cgroup that was
// delegated to it. The daemon must move because a cgroup whose children have controllers must not
// contain processes (cgroup-v2.rst, "No Internal Process Constraint").
const ownName = "daemon"

// findParent returns a cgroup below which the daemon may make leaves. It tries in this order:
//
//  1. the daemon's own cgroup, or its parent, if systemd has delegated that cgroup;
//  2. if the daemon runs as root, the root of the hierarchy.
func findParent() (string, error) {
	mount, err := mounted("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	own, err := ownDir(mount)
	if err != nil {
		return "", err
	}
	for _, dir := range []string{own, filepath.Dir(own)} {
		if strings.HasPrefix(dir, mount) && isDelegated(dir) {
			return dir, nil
		}
	}
	if os.Geteuid() == 0 {
		return mount, nil
	}
	return "", fmt.Errorf("cgroup %s is not delegated to user %d: start the daemon with "+
		"'systemd-run --user --scope -p Delegate=yes forkd daemon'", own, os.Geteuid())
}

// mounted returns the mount point of cgroup v2. The file at the given path has the format of
// /proc/mounts.
func mounted(mounts string) (string, error) {
	p, err := os.ReadFile(mounts)
	if err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	for line := range strings.Lines(string(p)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", errors.New("cgroup v2 is not mounted; where cgroup v1 is, boot with " + unified)
}

// ownDir returns the directory of the daemon's cgroup.
func ownDir(mount string) (string, error) {
	p, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("find the daemon's cgroup: %w", err)
	}
	for line := range strings.Lines(string(p)) {
		if at, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return filepath.Join(mount, at), nil
		}
	}
	return "", errors.New("the daemon is in no cgroup v2")
}

// isDelegated reports whether systemd, or another program that has started the daemon, permits
// processes in this cgroup to manage it (systemd.resource-control(5), Delegate=).
func isDelegated(dir string) bool {
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		buf := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, buf); err == nil && string(buf[:n]) == "1" {
			return true
		}
	}
	return false
}

// leave moves the daemon from the given cgroup to a child of that cgroup, so that the children can
// have controllers. It does not move other processes.
func leave(parent string) error {
	pids, err := fields(parent, "cgroup.procs")
	if err != nil {
		return err
	}
	self := strconv.Itoa(os.Getpid())
	inside, others := false, 0
	for _, pid := range pids {
		if inside = inside || pid == self; pid != self {
			others++
		}
	}
	if _, err := os.Stat(filepath.Join(parent, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		return nil // a root cgroup may contain processes
	}
	if others > 0 {
		return fmt.Errorf("cgroup %s holds %d other processes, so no limits can be set below it: start the daemon in a cgroup "+
			"of its own ('systemd-run --scope -p Delegate=yes forkd daemon', with --user unless you are root)", parent, others)
	}
	if !inside {
		return nil
	}
	dir := filepath.Join(parent, ownName)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	return write(dir, "cgroup.procs", "0")
}

// diskOf returns the major:minor of the whole disk that contains dir. The file io.max requires the
// number of a whole disk.
func diskOf(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", fmt.Errorf("find the disk of %s: %w", dir, err)
	}
	major, minor := unix.Major(st.Dev), unix.Minor(st.Dev)
	if major == 0 {
		return "", fmt.Errorf("%s is on a file system that names no disk (tmpfs, overlay, btrfs), so there are no io limits",
			dir)
	}
	sys := fmt.Sprintf("/sys/dev/block/%d:%d", major, minor)
	if _, err := os.Stat(sys + "/partition"); err != nil {
		return fmt.Sprintf("%d:%d", major, minor), nil
	}
	// The link sys leads to the directory of the partition. Its parent is the directory of the
	// disk.
	p, err := os.ReadFile(sys + "/../dev")
	if err != nil {
		return "", fmt.Errorf("find the disk of %s: %w", dir, err)
	}
	return strings.TrimSpace(string(p)), nil
}
