// Package process starts forkd-vmm, forkd-net, forkd-ssh and forkd-feed. forkd-vmm and forkd-net
// continue when the daemon exits, and the package finds them again.
//
// A process is identified by its id and its start time, which are stored in a file. The callers
// decide what to send to a process and when it must end. The standard error of a process is written
// to memory of bounded size, which is charged to the process. So not even a compromised process can
// fill a disk.
package process

import (
	"cmp"
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
	Name     string        // name in messages, which is also the process's own name
	Bin      string        // path of the program
	Env      []string      // whole environment
	Record   string        // path of the file for the process's id and start time; empty: Find is not needed
	Files    []*os.File    // become descriptors 3, 4 and so on of the process
	LogBytes int64         // maximum size of the standard error; 0 means 16 MiB
	Cgroup   *os.File      // cgroup v2 directory in which the process starts; nil: the daemon's cgroup
	Jail     *jail.Starter // nil: no jail
	Online   bool          // the jail has access to the host's network
}

// Process is a process that this daemon or an earlier one has started.
type Process struct {
	pid   int
	pidfd *os.File    // closed when the process has ended, because another process may get the pid then
	child *os.Process // nil if an earlier daemon started the process
	log   *os.File    // the process's standard error; nil if unknown
	said  string
}

// adopt returns a Process that owns pidfd. Go's poller waits for the pidfd. A blocking system call
// would instead occupy a processor of the Go scheduler until the runtime notices.
func adopt(pid, pidfd int, child *os.Process) (*Process, error) {
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("watch process %d: %w", pid, err), unix.Close(pidfd))
	}
	return &Process{pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), child: child}, nil
}

// Start runs a program with / as its working directory. The process leads its own process group, so
// signals to the daemon's group, for example from a terminal, do not reach the process. The process
// stays in the daemon's session, because Linux divides CPU time among sessions (autogroups,
// sched(7)). If each VMM had its own session, the daemon would receive only as much CPU time as one
// guest.
func Start(spec Spec) (*Process, error) {
	log, err := newLog(spec.Name, cmp.Or(spec.LogBytes, logSize))
	if err != nil {
		return nil, fmt.Errorf("create the log of %s: %w", spec.Name, err)
	}
	var pidfd int
	sys := &syscall.SysProcAttr{Setpgid: true, PidFD: &pidfd}
	if spec.Cgroup != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(spec.Cgroup.Fd())
	}
	attr := os.ProcAttr{Dir: "/", Env: spec.Env, Files: append([]*os.File{nil, nil, log}, spec.Files...), Sys: sys}
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
	if spec.Record == "" {
		return p, nil
	}
	if err := p.record(&spec); err != nil {
		return nil, errors.Join(err, p.Kill(), p.Wait())
	}
	return p, nil
}

// startTime returns the start time of a process in clock ticks since boot (proc(5), stat field 22).
// A pid may be reused, but pid and start time together identify a process uniquely.
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

// Find returns the process whose id and start time Start has stored in the given file. It returns
// an error if that process has ended.
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
	// From here on the pid cannot be reused, because the pidfd is open.
	now, err := startTime(pid)
	if err == nil && now != start {
		err = errors.New("another process has its id now")
	}
	if err != nil { // the process may still run: an error also occurs if, for example, no more files can be opened
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

// SetOOMScore sets how early the kernel kills the process when the host is out of memory. Among
// processes of equal size, the kernel first kills the process with the highest score (proc(5),
// oom_score_adj).
func (p *Process) SetOOMScore(score int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.pid), []byte(strconv.Itoa(score)), 0)
}

// AllowFiles lets the process write files of up to the given length in bytes. It raises the
// process's own limit if that limit is lower (jail.LimitFiles). The daemon needs CAP_SYS_RESOURCE
// for this.
func (p *Process) AllowFiles(length uint64) error {
	var has unix.Rlimit
	if err := unix.Prlimit(p.pid, unix.RLIMIT_FSIZE, nil, &has); err != nil || has.Cur >= length {
		return err
	}
	return unix.Prlimit(p.pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: length, Max: max(length, has.Max)}, nil)
}

// Kill kills the process, if it has not ended yet.
func (p *Process) Kill() error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return nil // the pidfd is closed, because the process has ended
	}
	// an error here means that the process has ended
	_ = raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Wait waits until the process has ended, and releases its resources. It may be called only once.
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

// hasEnded reports whether the process of pidfd has ended.
func hasEnded(pidfd uintptr) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return n > 0 || err != nil
		}
	}
}

// Said returns what the process has written to its standard error. Call it after Wait. The result
// is empty if the process has not failed, or if its standard error is unknown. If the process has
// written more than 32 KiB, Said returns the beginning and the end. Output beyond Spec.LogBytes is
// lost.
func (p *Process) Said() string { return p.said }

// Release releases the resources for a process without waiting for it.
func (p *Process) Release() {
	_ = p.pidfd.Close()
	_ = p.log.Close() // Close of a nil file only returns an error
}
