// Package reap starts child processes and collects their exit statuses. In PID 1 it also collects
// orphans, which the kernel makes children of PID 1. If a caller waits for a process, the package
// leaves the process's status to that caller.
//
// It does not restart, limit or kill processes by itself.
package reap

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrExited reports that a process has already been collected and cannot be signalled.
var ErrExited = errors.New("process has exited")

// Reaper starts processes, and tracks the processes that have not been collected.
type Reaper struct {
	all bool

	mu       sync.Mutex
	children map[int]*Child
}

// Child is a process started by a Reaper.
type Child struct {
	Pid    int
	reaper *Reaper
	done   chan struct{}
	status syscall.WaitStatus // valid after done is closed
}

// New returns a Reaper that collects only the processes that it has started.
func New() *Reaper { return &Reaper{children: map[int]*Child{}} }

// NewInit returns a Reaper for PID 1. It collects every child process of this process, including
// adopted processes, until this process exits. No other code in the process may wait for child
// processes.
func NewInit() *Reaper {
	r := New()
	r.all = true
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	go func() {
		for range sigchld {
			r.collect()
		}
	}()
	return r
}

// Start starts cmd, whose Stdin, Stdout and Stderr must be files or nil. Do not use cmd.Wait or
// cmd.Process afterwards.
func (r *Reaper) Start(cmd *exec.Cmd) (*Child, error) {
	// Hold the lock during the start. So even a child that exits immediately is in the table before
	// it is collected.
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &Child{Pid: cmd.Process.Pid, reaper: r, done: make(chan struct{})}
	r.children[c.Pid] = c
	if r.all {
		cmd.Process.Release()
	} else {
		go c.wait()
	}
	return c, nil
}

// collect collects every child process that has exited. It loops, because one SIGCHLD may stand for
// several child processes.
func (r *Reaper) collect() {
	for {
		r.mu.Lock()
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			r.mu.Unlock()
			continue
		}
		if err != nil || pid <= 0 {
			r.mu.Unlock()
			return
		}
		if c := r.children[pid]; c != nil {
			c.finishLocked(status)
		}
		r.mu.Unlock()
	}
}

// wait collects one child process, for a Reaper made by New. It first waits without collecting
// (WNOWAIT), and then collects under the lock that Signal holds.
func (c *Child) wait() {
	for {
		err := unix.Waitid(unix.P_PID, c.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	c.reaper.mu.Lock()
	defer c.reaper.mu.Unlock()
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.Pid, &status, 0, nil)
		if err != syscall.EINTR {
			break
		}
	}
	c.finishLocked(status)
}

func (c *Child) finishLocked(status syscall.WaitStatus) {
	delete(c.reaper.children, c.Pid)
	c.status = status
	close(c.done)
}

// Done returns a channel that is closed when the process has been collected.
func (c *Child) Done() <-chan struct{} { return c.done }

// Status waits for the process to end and returns its status.
func (c *Child) Status() syscall.WaitStatus {
	<-c.done
	return c.status
}

// Signal sends sig to the process, or returns ErrExited if the process has been collected. It never
// signals another process that now has the same id.
func (c *Child) Signal(sig syscall.Signal) error { return c.signal(c.Pid, sig) }

// SignalGroup is like Signal, but signals the process group that the process leads.
func (c *Child) SignalGroup(sig syscall.Signal) error { return c.signal(-c.Pid, sig) }

func (c *Child) signal(pid int, sig syscall.Signal) error {
	c.reaper.mu.Lock()
	defer c.reaper.mu.Unlock()
	if c.reaper.children[c.Pid] != c {
		return ErrExited
	}
	return syscall.Kill(pid, sig)
}
