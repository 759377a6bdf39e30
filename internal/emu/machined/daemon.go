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
	// daemonLogBytes is how much of the daemon's output is kept.
	daemonLogBytes = 256 << 10
	// daemonPipeGrace bounds the wait for output after the daemon's end: sandboxes may outlive it
	// and hold the pipe.
	daemonPipeGrace = time.Second
	// daemonProven is how long a daemon must have run for its end to be an accident. A first run that
	// ends by itself earlier was started wrongly, and the host is told instead.
	daemonProven = 10 * time.Second
	// daemonPause is before a daemon is started again; after an accident soon after the last one it
	// doubles, up to daemonMaxPause.
	daemonPause    = time.Second
	daemonMaxPause = 30 * time.Second
)

var errDaemonRuns = errors.New("the daemon runs already: `forkd machine stop` ends it, with its host")

// daemon looks after the one forkd daemon of the emulated host. What the daemon starts is left
// alone when it ends: sandboxes outlive their daemon, and the next one adopts them.
//
//	stopped ──start──▶ running ──killed, or ended after daemonProven──▶ pausing ──▶ running
//	   ▲                  │ its first run ended by itself at once,           │ abandoned
//	   │                  │ or it was abandoned                              │
//	   └──────────────────┴──────────────────────────────────────────────────┘
type daemon struct {
	cgroup string        // directory that it gets to itself; empty: it starts where the server runs
	pause  time.Duration // before the first restart

	mu sync.Mutex
	// +checklocks:mu
	request machineapi.DaemonStart // of the last start
	// +checklocks:mu
	cmd *exec.Cmd // nil if it does not run
	// +checklocks:mu
	started time.Time
	// +checklocks:mu
	abandoned bool // it is not started again
	// +checklocks:mu
	exit *machineapi.ExecExit
	// +checklocks:mu
	again *time.Timer // the restart to come, nil if there is none
	// +checklocks:mu
	next time.Duration // the pause of the next restart
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
	// One that ran before has no wrong flags: it is hindered by something that may pass, such as a lock.
	if d.abandoned || exit.Signal == 0 && !proven && d.restarts == 0 {
		return
	}
	if proven {
		d.next = d.pause
	}
	d.restartLocked()
}

// restartLocked starts the daemon again after a pause.
//
// +checklocks:d.mu
func (d *daemon) restartLocked() {
	fmt.Fprintf(&d.log, "forkd-machined: the daemon is gone: starting it again in %v\n", d.next)
	var timer *time.Timer
	timer = time.AfterFunc(d.next, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.again != timer {
			return // called off
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

// abandon leaves the daemon to its end, which is near: the emulated host goes down.
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

// tail is an io.Writer that keeps the last daemonLogBytes written to it.
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
