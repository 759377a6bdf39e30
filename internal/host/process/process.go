// Package process starts processes that outlive the daemon, and finds them again: forkd-vmm and
// forkd-net.
//
// A process is identified by its id and start time, which are written into a file. The callers
// decide what to send to a process and when it must end. Its standard error is memory of bounded
// size, charged to the process, so that a process that was taken over cannot fill a disk.
package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
)

// Spec describes the program for Start.
type Spec struct {
	Name     string        // for messages, and as the process's own name
	Bin      string        // path of the program
	Env      []string      // whole environment
	Record   string        // file for its id and start time
	Listener *os.File      // becomes descriptor 3; nil: none
	Cgroup   *os.File      // cgroup v2 directory that it starts in; nil: the daemon's
	Jail     *jail.Starter // nil: none
	Online   bool          // its jail has the host's network
}

// Process is a process started by this daemon or an earlier one.
type Process struct {
	pid   int
	pidfd *os.File    // closed when the process has ended, because another process may then have the pid
	child *os.Process // nil if another daemon started it
	log   *os.File    // its standard error; nil if it is not known
	said  string
}

// adopt takes over pidfd, so that Go's poller waits for it: a blocking system call would occupy a
// processor of the scheduler until the runtime notices.
func adopt(pid, pidfd int, child *os.Process) (*Process, error) {
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("watch process %d: %w", pid, err), unix.Close(pidfd))
	}
	return &Process{pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), child: child}, nil
}

// Start runs a program in the root directory. The program leads its own process group, so that
// signals to the daemon's group, such as a terminal's, do not reach it. It stays in the daemon's
// session, because Linux shares CPUs among sessions (autogroups, sched(7)). With a session per VMM,
// the daemon would get only the share of one of its guests.
func Start(spec Spec) (*Process, error) {
	log, err := newLog(spec.Name)
	if err != nil {
		return nil, fmt.Errorf("create the log of %s: %w", spec.Name, err)
	}
	var pidfd int
	sys := &syscall.SysProcAttr{Setpgid: true, PidFD: &pidfd}
	if spec.Cgroup != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(spec.Cgroup.Fd())
	}
	attr := os.ProcAttr{Dir: "/", Env: spec.Env, Files: []*os.File{nil, nil, log, spec.Listener}, Sys: sys}
	var child *os.Process
	if argv := []string{spec.Name}; spec.Jail == nil {
		child, err = os.StartProcess(spec.Bin, argv, &attr)
	} else {
		child, err = spec.Jail.Start(spec.Bin, argv, attr, spec.Online)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", spec.Name, err), log.Close())
	}
	p, err := adopt(child.Pid, pidfd, child)
	if err != nil {
		killed := child.Kill()
		_, waited := child.Wait()
		return nil, errors.Join(err, killed, waited, log.Close())
	}
	p.log = log
	if err := p.record(&spec); err != nil {
		return nil, errors.Join(err, p.Kill(), p.Wait())
	}
	return p, nil
}

// startTime returns the start time of a process in clock ticks since boot (proc(5), stat field 22).
// Together with the pid it identifies the process for good.
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

func (p *Process) record(spec *Spec) error {
	start, err := startTime(p.pid)
	if err != nil {
		return fmt.Errorf("identify %s: %w", spec.Name, err)
	}
	return os.WriteFile(spec.Record, fmt.Appendf(nil, "%d %s\n", p.pid, start), 0o600)
}

// Find returns the process that Start recorded in a file, if it still lives.
func Find(name, record string) (*Process, error) {
	text, err := os.ReadFile(record)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	pidText, start, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err := strconv.Atoi(pidText)
	if err != nil {
		return nil, fmt.Errorf("find %s: %s: %w", name, filepath.Base(record), err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("find %s: process %d: %w", name, pid, err)
	}
	// The pidfd is open, so another process cannot get the pid from here on.
	now, err := startTime(pid)
	if err == nil && now != start {
		err = errors.New("another process has its id now")
	}
	if err != nil { // possibly because no more files can be opened: then the process lives
		_ = unix.Close(fd)
		return nil, fmt.Errorf("find %s: process %d: %w", name, pid, err)
	}
	p, err := adopt(pid, fd, nil)
	if err == nil {
		p.log = findLog(pid)
	}
	return p, err
}

// PID returns the id of the process.
func (p *Process) PID() int { return p.pid }

// SetOOMScore sets how early the kernel kills the process when the host is out of memory: among
// processes of equal size, the one with the highest score first (proc(5), oom_score_adj).
func (p *Process) SetOOMScore(score int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.pid), []byte(strconv.Itoa(score)), 0)
}

// Kill kills the process, if it has not ended yet.
func (p *Process) Kill() error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return nil // closed: the process has ended
	}
	_ = raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }) // likewise
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Wait waits until the process has ended, and releases it. It is called once.
func (p *Process) Wait() error {
	defer p.Release()
	defer func() { p.said = readLog(p.log) }()
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

// hasEnded reports whether the process of a pidfd has ended.
func hasEnded(pidfd uintptr) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return n > 0 || err != nil
		}
	}
}

// Said returns the process's standard error, after Wait. It is empty unless the process failed, and
// for a process that was found but could not be waited for. Of more than 32 KiB it returns the two
// ends; output beyond 16 MiB is lost.
func (p *Process) Said() string { return p.said }

// Release releases a process without waiting for it.
func (p *Process) Release() {
	_ = p.pidfd.Close()
	_ = p.log.Close() // an error if there is none
}
