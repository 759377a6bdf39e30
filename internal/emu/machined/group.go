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

// groups starts processes so that each process can be killed together with all its child processes.
// Each process has its own process group. If the field root is set, each process also has its own
// cgroup, which a child cannot leave by setsid. The cgroup is delegated to the process, so that the
// process may divide it further.
type groups struct {
	root string // a cgroup v2 directory; empty: process groups only
	next *atomic.Uint64
}

// group is a process with all its child processes.
type group struct {
	pgid   int
	cgroup string // directory of the cgroup; empty without cgroups
}

// removeTries × removePause is the maximum time that a cgroup may take to become empty after its
// processes were killed.
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

// delegate prepares the cgroup dir for delegation to a process. It returns the open directory of a
// child cgroup of dir, in which the caller starts the process. systemd does the same
// (systemd.resource-control(5), Delegate= and DelegateSubgroup=). The cgroup dir itself must have
// no processes. If it had any, the kernel would not enable controllers for the cgroups below it.
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

// kill kills the process and all its child processes. With a cgroup, kill may be called at any
// time. Without a cgroup, kill must not be called after the process has been waited for and its
// child processes have ended, because process ids are reused.
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

// end kills the child processes that remain after the process has exited, and removes the cgroup.
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
