package machined

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// groups starts processes so that the whole tree of each can be killed: each is in a process group
// of its own. If root is set, each is also in its own cgroup, which children cannot leave by
// setsid. That cgroup is delegated to them, so that they may divide it further.
type groups struct {
	root string // a cgroup v2 directory; empty: process groups only
	next *atomic.Uint64
}

// group is one process tree.
type group struct {
	pgid   int
	cgroup string // directory, empty without cgroups
}

// removeTries × removePause is the maximum wait for a killed cgroup to become empty.
const (
	removeTries = 100
	removePause = 20 * time.Millisecond
)

// start starts cmd as the leader of a new group.
func (g groups) start(cmd *exec.Cmd) (group, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if g.root == "" {
		if err := cmd.Start(); err != nil {
			return group{}, err
		}
		return group{pgid: cmd.Process.Pid}, nil
	}
	dir := filepath.Join(g.root, strconv.FormatUint(g.next.Add(1), 10))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return group{}, fmt.Errorf("make cgroup: %w", err)
	}
	started := group{cgroup: dir}
	place, err := delegate(dir)
	if err == nil {
		defer place.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(place.Fd())
		err = cmd.Start()
	}
	if err != nil {
		started.end()
		return group{}, err
	}
	started.pgid = cmd.Process.Pid
	return started, nil
}

// delegate delegates a cgroup to a process that is started in the cgroup place below it, as systemd
// does (systemd.resource-control(5), Delegate= and DelegateSubgroup=). The cgroup itself must not
// contain processes: otherwise its children have no controllers.
func delegate(dir string) (place *os.File, err error) {
	if err := unix.Setxattr(dir, "trusted.delegate", []byte("1"), 0); err != nil {
		return nil, fmt.Errorf("delegate cgroup: %w", err)
	}
	inner := filepath.Join(dir, "main")
	if err := os.Mkdir(inner, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	if place, err = os.Open(inner); err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return place, nil
}

// signal sends sig to the process group.
func (g group) signal(sig syscall.Signal) { syscall.Kill(-g.pgid, sig) }

// kill kills the tree. With cgroups it may be called at any time, because a cgroup directory is
// never reused. Process ids are reused, so without cgroups it must not be called once the leader
// has been waited for and everything it started has ended.
func (g group) kill() {
	if g.cgroup == "" {
		g.signal(syscall.SIGKILL)
		return
	}
	err := os.WriteFile(filepath.Join(g.cgroup, "cgroup.kill"), []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Printf("kill %s: %v", g.cgroup, err)
	}
}

// end kills the remaining processes after the leader has exited, and removes the cgroup.
func (g group) end() {
	g.kill()
	if g.cgroup == "" {
		return
	}
	var err error
	for range removeTries {
		if err = removeTree(g.cgroup); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(removePause)
	}
	log.Printf("remove cgroup: %v", err)
}

// removeTree removes a cgroup and the cgroups below it.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}
