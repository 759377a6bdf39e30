package tcghost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/emu/debqemu"
)

const (
	// statePause is the interval between two reads of the state file.
	statePause = 50 * time.Millisecond
	// stopLimit bounds how long the supervisor may take to stop the emulated host in an orderly
	// way. It is longer than powerOffLimit and qemuExitLimit together.
	stopLimit = powerOffLimit + qemuExitLimit + 10*time.Second
)

// Start starts the emulated host if it is not running, waits until it answers, and returns its
// state. A running emulated host keeps its options. The parameter supervisor is the beginning of a
// command line that calls Supervise for this machine. The process with this command line outlives
// the caller. Start calls progress(message) for each step.
func (m Machine) Start(ctx context.Context, o Options, supervisor []string, progress func(string)) (State, error) {
	if err := o.validate(); err != nil {
		return State{}, err
	}
	if err := m.makeDir(); err != nil {
		return State{}, err
	}
	lock, err := waitLock(m.path(fileClientLock))
	if err != nil {
		return State{}, err
	}
	defer lock.Close()

	supervised, err := m.supervised()
	if err != nil {
		return State{}, err
	}
	if supervised {
		s, err := m.awaitReady(ctx, nil)
		if !errors.Is(err, errEnded) {
			return s, err
		}
	}
	if err := m.killStray(); err != nil {
		return State{}, err
	}
	if _, err := m.kernel(ctx, progress); err != nil {
		return State{}, err
	}
	if o.QEMU == "" {
		o.QEMU = debqemu.Choose(ctx, m.qemuDir(), progress)
	}
	progress("starting machine " + m.Name)
	exited, err := m.spawn(o, supervisor)
	if err != nil {
		return State{}, err
	}
	return m.awaitReady(ctx, exited)
}

// killStray kills a QEMU whose supervisor has exited. The kernel should have killed it already.
func (m Machine) killStray() error {
	s, err := m.State()
	if err != nil {
		return err
	}
	if err := s.QEMU.kill(unix.SIGKILL); err != nil && !errors.Is(err, errGone) {
		return err
	}
	return nil
}

// spawn starts the supervisor in a session of its own. The channel receives the supervisor's exit
// error.
func (m Machine) spawn(o Options, supervisor []string) (<-chan error, error) {
	if _, err := m.token(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("start supervisor: %w", err)
	}
	if err := m.replace(fileOptions, b); err != nil {
		return nil, err
	}
	// Remove copies made by clients that were killed. No program uses them while the emulated host
	// is off.
	if err := os.RemoveAll(m.path(dirRun)); err != nil {
		return nil, fmt.Errorf("remove old copies: %w", err)
	}
	// Replace the state file of the previous run, so that no process mistakes it for the state of
	// this run.
	if err := m.writeState(State{Name: m.Name, Phase: Starting, Options: o}); err != nil {
		return nil, err
	}
	log, err := os.Create(m.path(fileSuperLog))
	if err != nil {
		return nil, fmt.Errorf("start supervisor: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(supervisor[0], supervisor[1:]...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start supervisor: %w", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	return exited, nil
}

// errEnded means that the supervisor, which another process had started, has exited.
var errEnded = errors.New("the supervisor has ended")

// awaitReady waits until the emulated host answers, until it has failed for good, or until ctx is
// done. If another process has started the supervisor, exited is nil, and awaitReady returns
// errEnded when the supervisor exits.
func (m Machine) awaitReady(ctx context.Context, exited <-chan error) (State, error) {
	ticker := time.NewTicker(statePause)
	defer ticker.Stop()
	for {
		select {
		case err := <-exited:
			s, stateErr := m.State()
			if stateErr != nil {
				return s, stateErr
			}
			return s, fmt.Errorf("start emulated host %s: supervisor ended (%v): %s; see %s", m.Name, err, s.LastFailure,
				m.path(fileSuperLog))
		case <-ctx.Done():
			return State{}, fmt.Errorf("start emulated host %s: %w", m.Name, ctx.Err())
		case <-ticker.C:
		}
		s, err := m.State()
		switch {
		case err != nil:
			return s, err
		case s.Phase == Ready:
			return s, nil
		case exited == nil && (s.Phase == Failed || s.Phase == Stopped):
			return s, errEnded
		}
	}
}

// Stop shuts the emulated host down in an orderly way: its processes are killed, the disk is
// synced, the host powers off, and the supervisor exits. Stop returns false if the emulated host
// was not running.
func (m Machine) Stop(ctx context.Context) (bool, error) {
	if _, err := os.Stat(m.dir); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	lock, err := waitLock(m.path(fileClientLock))
	if err != nil {
		return false, err
	}
	defer lock.Close()
	s, err := m.State()
	if err != nil {
		return false, err
	}
	supervised, err := m.supervised()
	if err != nil || !supervised {
		return false, errors.Join(err, m.killStray())
	}
	if err := s.Supervisor.kill(unix.SIGTERM); err != nil && !errors.Is(err, errGone) {
		return true, fmt.Errorf("stop emulated host %s: %w", m.Name, err)
	}
	if !m.awaitUnsupervised(ctx, stopLimit) {
		// If the supervisor is killed, the kernel also kills QEMU.
		if err := s.Supervisor.kill(unix.SIGKILL); err != nil && !errors.Is(err, errGone) {
			return true, fmt.Errorf("stop emulated host %s: %w", m.Name, err)
		}
		if !m.awaitUnsupervised(ctx, qemuExitLimit) {
			return true, fmt.Errorf("stop emulated host %s: supervisor %d cannot be ended", m.Name, s.Supervisor.PID)
		}
	}
	return true, m.killStray()
}

func (m Machine) awaitUnsupervised(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(statePause)
	defer ticker.Stop()
	for {
		if supervised, err := m.supervised(); err == nil && !supervised {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}
