package machined

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/emu/machineapi"
)

const (
	// daemonLogBytes is the number of bytes from the end of the daemon's output that are kept.
	daemonLogBytes = 256 << 10
	// daemonPipeGrace bounds the wait for the end of the output after the daemon's exit, because
	// sandboxes may outlive the daemon and keep the pipe open.
	daemonPipeGrace = time.Second
	// daemonProven is the time after which an exit of the daemon counts as a crash. If the daemon's
	// first process exits earlier by itself, the command line is probably wrong. In this case the
	// daemon is not restarted, and the host sees the exit in the status.
	daemonProven = 10 * time.Second
	// daemonPause is the pause before a restart. Each further early exit doubles the pause, up to
	// daemonMaxPause.
	daemonPause    = time.Second
	daemonMaxPause = 30 * time.Second
)

var errDaemonRuns = errors.New("the daemon runs already: `forkd machine stop` ends it, with its host")

// daemon supervises the forkd daemon of the emulated host. When the daemon exits, the processes
// that it has started are not killed, because sandboxes outlive the daemon, and the next daemon
// takes them over.
//
//	stopped ──start──▶ running ──killed, or exits after daemonProven──▶ pausing ──▶ running
//	   ▲                  │ its first process exits by itself at once,      │ abandoned
//	   │                  │ or it was abandoned                             │
//	   └──────────────────┴─────────────────────────────────────────────────┘
type daemon struct {
	cgroup string        // cgroup directory of the daemon; empty: it runs in the server's cgroup
	pause  time.Duration // pause before the first restart

	mu sync.Mutex
	// +checklocks:mu
	request machineapi.DaemonStart // last start request
	// +checklocks:mu
	cmd *exec.Cmd // nil if not running
	// +checklocks:mu
	started time.Time
	// +checklocks:mu
	abandoned bool // whether the daemon is never restarted again
	// +checklocks:mu
	exit *machineapi.ExecExit
	// +checklocks:mu
	again *time.Timer // pending restart; nil if there is none
	// +checklocks:mu
	next time.Duration // pause before the next restart
	// +checklocks:mu
	restarts int
	log      tail
}

func (d *daemon) start(req machineapi.DaemonStart) error {
	if len(req.Argv) == 0 {
		return errors.New("start daemon: argv is empty: name a program")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd != nil {
		return errDaemonRuns
	}
	d.cancelRestartLocked()
	d.request, d.next, d.restarts = req, d.pause, 0
	return d.startLocked()
}

// +checklocks:d.mu
func (d *daemon) startLocked() error {
	cmd := exec.Command(d.request.Argv[0], d.request.Argv[1:]...)
	cmd.Env = append(os.Environ(), d.request.Env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &d.log, &d.log
	cmd.WaitDelay = daemonPipeGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if d.cgroup != "" {
		dir, err := delegate(d.cgroup)
		if err != nil {
			return fmt.Errorf("start daemon: %w", err)
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	d.cmd, d.exit = cmd, nil
	d.started, d.abandoned = time.Now(), false
	go d.wait(cmd)
	return nil
}

func (d *daemon) wait(cmd *exec.Cmd) {
	exit := exitOf(cmd.Wait(), cmd.ProcessState)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cmd, d.exit = nil, &exit
	proven := time.Since(d.started) >= daemonProven
	// After a restart, an early exit is not final, because the command line has worked before, and
	// the cause of the exit (such as a lock) may disappear.
	if d.abandoned || exit.Signal == 0 && !proven && d.restarts == 0 {
		return
	}
	if proven {
		d.next = d.pause
	}
	d.restartLocked()
}

// restartLocked restarts the daemon after a pause.
//
// +checklocks:d.mu
func (d *daemon) restartLocked() {
	fmt.Fprintf(&d.log, "forkd-machined: the daemon is gone: starting it again in %v\n", d.next)
	var timer *time.Timer
	timer = time.AfterFunc(d.next, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.again != timer {
			return // cancelled
		}
		d.again = nil
		d.restarts++
		if err := d.startLocked(); err != nil {
			fmt.Fprintf(&d.log, "forkd-machined: %v\n", err)
			d.restartLocked()
		}
	})
	d.again = timer
	d.next = min(2*d.next, daemonMaxPause)
}

// +checklocks:d.mu
func (d *daemon) cancelRestartLocked() {
	if d.again != nil {
		d.again.Stop()
		d.again = nil
	}
}

// abandon stops the restarts of the daemon, because the emulated host is about to power off.
func (d *daemon) abandon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.abandoned = true
	d.cancelRestartLocked()
}

func (d *daemon) status() machineapi.DaemonStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := machineapi.DaemonStatus{Running: d.cmd != nil, Restarting: d.again != nil, Restarts: d.restarts,
		Exit: d.exit, Log: d.log.String()}
	if d.cmd != nil {
		s.PID = d.cmd.Process.Pid
	}
	return s
}

// tail is an io.Writer that keeps the last daemonLogBytes bytes.
type tail struct {
	mu sync.Mutex
	// +checklocks:mu
	b []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if extra := len(t.b) - daemonLogBytes; extra > 0 {
		t.b = append(t.b[:0], t.b[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
