package vmmclient

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/console"
)

// process is a forkd-vmm, our child or not.
type process struct {
	pid   int
	pidfd *os.File    // closed when the process has ended: the pid may be another's by then
	child *os.Process // nil if another daemon started it
}

// newProcess takes over pidfd, for Go's poller to wait for: a system call that waits would keep a processor of the
// scheduler from other goroutines until the runtime notices.
func newProcess(pid, pidfd int, child *os.Process) (*process, error) {
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("watch process %d: %w", pid, err), unix.Close(pidfd))
	}
	return &process{pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), child: child}, nil
}

// startProcess runs the VMM binary with listener as its control socket. It leads a process group of its own: signals to
// the daemon's group, such as a terminal's, do not reach it. It stays in the daemon's session, because Linux shares CPUs
// among sessions (autogroups, sched(7)): with one for each VMM, the daemon would be one among its guests.
func startProcess(cfg *Config, listener *os.File) (*process, error) {
	log, err := os.OpenFile(filepath.Join(cfg.Dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create VMM log: %w", err)
	}
	defer log.Close()
	var pidfd int
	p, err := os.StartProcess(cfg.Bin, []string{"forkd-vmm"}, &os.ProcAttr{
		Dir:   "/",
		Env:   vmmEnv,
		Files: []*os.File{nil, nil, log, listener},
		Sys:   &syscall.SysProcAttr{Setpgid: true, PidFD: &pidfd},
	})
	if err != nil {
		return nil, fmt.Errorf("start forkd-vmm: %w", err)
	}
	proc, err := newProcess(p.Pid, pidfd, p)
	if err != nil {
		killed := p.Kill()
		_, waited := p.Wait()
		return nil, errors.Join(err, killed, waited)
	}
	if err := proc.writePID(cfg.Dir); err != nil {
		return nil, errors.Join(err, proc.kill(), proc.wait())
	}
	return proc, nil
}

// vmmEnv bounds the Go runtime of the VMM: its heap never holds more than a few hundred KiB, so collecting it would only
// dirty pages, as would a second thread while it starts; package vmm raises GOMAXPROCS when it has vCPUs. Where the host
// gives transparent huge pages to everybody, that heap would take two of them, 4 MiB. The VMM cannot refuse them for
// itself: its runtime has touched the heap by then. What the runtime has beside the heap is too small for one.
var vmmEnv = []string{"GOMAXPROCS=1", "GOGC=400", "GODEBUG=madvdontneed=1,disablethp=1"}

// startTime returns the start time of a process in clock ticks since boot (proc(5), stat field 22). Together with the
// pid it identifies the process for good.
func startTime(pid int) (string, error) {
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(string(p), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	return fields[19], nil
}

func (p *process) writePID(dir string) error {
	start, err := startTime(p.pid)
	if err != nil {
		return fmt.Errorf("identify forkd-vmm: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, pidFile), fmt.Appendf(nil, "%d %s\n", p.pid, start), 0o600)
}

// findProcess returns the process that startProcess recorded in dir, if it still lives.
func findProcess(dir string) (*process, error) {
	text, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return nil, fmt.Errorf("find forkd-vmm: %w", err)
	}
	pidText, start, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err := strconv.Atoi(pidText)
	if err != nil {
		return nil, fmt.Errorf("find forkd-vmm: %s: %w", pidFile, err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("find forkd-vmm: process %d: %w", pid, err)
	}
	// The pidfd is open, so the pid cannot be given to another process from here on.
	if now, err := startTime(pid); err != nil || now != start {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("find forkd-vmm: process %d is another one now", pid)
	}
	return newProcess(pid, fd, nil)
}

// kill ends the process, if it has not ended yet.
func (p *process) kill() error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return nil // it is closed: the process has ended
	}
	_ = raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }) // likewise
	if err == unix.ESRCH {
		return nil
	}
	return err
}

// wait returns when the process has ended, and releases it. It is called once.
func (p *process) wait() error {
	defer p.release()
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Read(hasEnded); err != nil {
		return fmt.Errorf("wait for process %d: %w", p.pid, err)
	}
	if p.child != nil {
		_, err = p.child.Wait()
	}
	return err
}

// hasEnded reports whether the process of a pidfd has.
func hasEnded(pidfd uintptr) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return n > 0 || err != nil
		}
	}
}

func (p *process) release() { _ = p.pidfd.Close() }

// Console returns the last console output of the guest whose VMM has the directory dir.
func Console(dir string) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, consoleFile))
	if err != nil {
		return nil, fmt.Errorf("read console: %w", err)
	}
	defer f.Close()
	return console.Tail(f)
}
