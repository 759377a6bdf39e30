package machined

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/tcghost/machineapi"
)

const (
	// daemonLogBytes is how much of the daemon's output is kept.
	daemonLogBytes = 256 << 10
	// daemonStopGrace is how long the daemon may take to end after SIGTERM.
	daemonStopGrace = 10 * time.Second
	// daemonPipeGrace bounds the wait for output after the daemon's end: sandboxes may outlive it and hold the pipe.
	daemonPipeGrace = time.Second
)

var (
	errDaemonRuns = errors.New("the daemon runs already: stop it first")
	errDaemonDown = errors.New("the daemon does not run")
)

// daemon looks after the one forkd daemon of the machine. What the daemon starts is left alone when it ends: sandboxes
// outlive their daemon, and the next one adopts them.
type daemon struct {
	cgroup string // directory to start it in; empty: where the server runs

	mu   sync.Mutex
	cmd  *exec.Cmd // nil if it does not run
	done chan struct{}
	exit *machineapi.ExecExit
	log  tail
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
	cmd := exec.Command(req.Argv[0], req.Argv[1:]...)
	cmd.Env = append(os.Environ(), req.Env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &d.log, &d.log
	cmd.WaitDelay = daemonPipeGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if d.cgroup != "" {
		dir, err := os.Open(d.cgroup)
		if err != nil {
			return fmt.Errorf("start daemon: %w", err)
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	d.cmd, d.exit, d.done = cmd, nil, make(chan struct{})
	go d.wait(cmd, d.done)
	return nil
}

func (d *daemon) wait(cmd *exec.Cmd, done chan struct{}) {
	exit := exitOf(cmd.Wait(), cmd.ProcessState)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cmd, d.exit = nil, &exit
	close(done)
}

// stop ends the daemon and returns when it is gone.
func (d *daemon) stop() error {
	d.mu.Lock()
	cmd, done := d.cmd, d.done
	d.mu.Unlock()
	if cmd == nil {
		return errDaemonDown
	}
	cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-done:
	case <-time.After(daemonStopGrace):
		cmd.Process.Kill()
		<-done
	}
	return nil
}

func (d *daemon) status() machineapi.DaemonStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := machineapi.DaemonStatus{Running: d.cmd != nil, Exit: d.exit, Log: d.log.String()}
	if d.cmd != nil {
		s.PID = d.cmd.Process.Pid
	}
	return s
}

// tail is an io.Writer that keeps the last daemonLogBytes written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
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
