package tcghost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/emu/debkernel"
	"github.com/forkd/forkd/internal/emu/machineapi"
)

const (
	pingEvery = 2 * time.Second
	// pingBootEvery is the interval and the time limit of pings during a boot. It is short, because
	// QEMU accepts connections before the emulated host listens, so an early ping takes its full
	// time limit.
	pingBootEvery = 250 * time.Millisecond
	// pingLimit bounds one ping after the first answer of a boot.
	pingLimit = 10 * time.Second
	// maxFailedBoots is the number of consecutive starts without an answer after which the
	// supervisor gives up.
	maxFailedBoots = 3
	// Limits for the steps of an orderly shutdown. First the emulated host syncs and powers off.
	// Then QEMU writes its disks and exits. If these steps take longer, QEMU is killed.
	powerOffLimit = 20 * time.Second
	qemuExitLimit = 5 * time.Second
)

// supervisor owns the QEMU of one machine. Only the goroutine of Supervise uses its fields.
type supervisor struct {
	m       Machine
	options Options
	token   string
	init    []byte // the program forkd-machined
	state   State
}

// Supervise runs the emulated host until ctx is done, and then stops it. It is the only work of the
// supervisor process. It returns an error if the emulated host cannot be started, if several boots
// in a row have failed, or if there is another supervisor.
func (m Machine) Supervise(ctx context.Context) error {
	lock, err := tryLock(m.path(fileSuperLock))
	if errors.Is(err, errLocked) {
		return fmt.Errorf("supervise emulated host %s: another supervisor is there", m.Name)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	// The kernel kills QEMU when the thread that has started it ends. So this thread must exist as
	// long as the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	s := &supervisor{m: m, state: State{Name: m.Name}}
	err = s.prepare()
	if err == nil {
		err = s.run(ctx)
	}
	s.state.Phase, s.state.QEMU = Stopped, Process{}
	if err != nil {
		s.state.Phase, s.state.LastFailure = Failed, err.Error()
		log.Printf("give up: %v", err)
	}
	return errors.Join(err, m.writeState(s.state))
}

func (s *supervisor) prepare() error {
	b, err := os.ReadFile(s.m.path(fileOptions))
	if err != nil {
		return fmt.Errorf("read options: %w", err)
	}
	if err := json.Unmarshal(b, &s.options); err != nil {
		return fmt.Errorf("read options: %w", err)
	}
	if s.token, err = s.m.token(); err != nil {
		return err
	}
	if s.init, err = embedded.Open(embedded.Machined); err != nil {
		return err
	}
	s.state.Options = s.options
	s.state.Supervisor, err = identify(os.Getpid())
	return err
}

// run starts the emulated host again and again until ctx is done. If a step before the start of
// QEMU fails, a second attempt would fail too, so run returns the error.
func (s *supervisor) run(ctx context.Context) error {
	failed := 0
	for {
		cmd, err := s.launch(ctx)
		if err != nil {
			return err
		}
		answered, failure := s.watch(ctx, cmd)
		s.state.QEMU = Process{}
		if ctx.Err() != nil {
			return nil
		}
		log.Printf("emulated host failed: %v", failure)
		s.state.Phase, s.state.LastFailure = Starting, failure.Error()
		s.state.Restarts++
		if err := s.m.writeState(s.state); err != nil {
			return err
		}
		failed++
		if answered {
			failed = 0
		}
		if failed == maxFailedBoots {
			return fmt.Errorf("%d starts in a row without an answer, the last: %w", failed, failure)
		}
	}
}

// launch starts QEMU and writes the new state to the state file.
func (s *supervisor) launch(ctx context.Context) (*exec.Cmd, error) {
	vmlinux, err := s.writeBoot(ctx)
	if err != nil {
		return nil, err
	}
	cmd, err := s.m.startQEMU(s.options, vmlinux, s.state.InitAddr, s.state.DaemonAddr)
	if err != nil {
		return nil, err
	}
	if s.state.QEMU, err = identify(cmd.Process.Pid); err == nil {
		s.state.Phase, s.state.StartedAt, s.state.ReadyMS = Starting, time.Now(), 0
		err = s.m.writeState(s.state)
	}
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	log.Printf("boot %s: qemu is process %d", s.state.BootID, cmd.Process.Pid)
	return cmd, nil
}

// writeBoot writes all files that QEMU reads, and returns the path of the kernel.
func (s *supervisor) writeBoot(ctx context.Context) (string, error) {
	kernel, err := s.m.kernel(ctx, func(msg string) { log.Print(msg) })
	if err != nil {
		return "", err
	}
	busybox, err := debkernel.Busybox(ctx, s.m.kernelDir())
	if err != nil {
		return "", err
	}
	if err := s.m.ensureDisk(ctx, s.options.DiskGiB); err != nil {
		return "", err
	}
	// Use the same ports as before if they are free, because clients may have stored them.
	if s.state.InitAddr, err = freeAddr(s.state.InitAddr); err != nil {
		return "", err
	}
	if s.state.DaemonAddr, err = freeAddr(s.state.DaemonAddr); err != nil {
		return "", err
	}
	s.state.BootID = randomHex(8)
	config := machineapi.Config{Token: s.token, BootID: s.state.BootID, Shares: s.m.shares()}
	return kernel.VMLinux, s.m.writeInitrd(kernel, busybox, s.init, config)
}

// watch pings the emulated host until the emulated host exits or hangs. If ctx ends first, it stops
// the emulated host. It returns whether the emulated host has answered a ping, and an error that
// says why the emulated host is gone.
func (s *supervisor) watch(ctx context.Context, cmd *exec.Cmd) (answered bool, _ error) {
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	c := newClient(s.state.InitAddr, s.token)
	defer c.close()
	pongs := make(chan struct{})
	pingCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	pid, addrs := cmd.Process.Pid, []string{s.state.InitAddr, s.state.DaemonAddr}
	go func() {
		if awaitListen(pingCtx, pid, addrs) {
			poll(pingCtx, c, s.state.BootID, pongs)
		}
	}()

	silence := time.NewTimer(s.options.HangLimit)
	defer silence.Stop()
	for {
		select {
		case <-pongs:
			silence.Reset(s.options.HangLimit)
			if answered {
				continue
			}
			answered = true
			s.state.Phase, s.state.ReadyMS = Ready, time.Since(s.state.StartedAt).Milliseconds()
			log.Printf("ready after %d ms", s.state.ReadyMS)
			if err := deepen(pid, addrs...); err != nil {
				log.Printf("many clients at once may be refused: %v", err)
			}
			if err := s.m.writeState(s.state); err != nil {
				log.Print(err)
			}
		case err := <-exited:
			return answered, fmt.Errorf("QEMU ended (%v): %s", err, s.lastWords())
		case <-silence.C:
			kill(cmd, exited)
			return answered, fmt.Errorf("hung: no answer for %v: %s", s.options.HangLimit, s.lastWords())
		case <-ctx.Done():
			s.shutDown(cmd, exited)
			return answered, ctx.Err()
		}
	}
}

// lastWords returns the last messages of an emulated host: QEMU's own errors or, if there are none,
// the end of the console.
func (s *supervisor) lastWords() string {
	const keep = 500
	var errs []string
	for line := range strings.Lines(s.m.logTail(fileQEMULog, 8*keep)) {
		// QEMU warns at each start about CPU features that it does not emulate. The emulated host
		// does not need them.
		if !strings.Contains(line, "TCG doesn't support requested feature") {
			errs = append(errs, strings.TrimSpace(line))
		}
	}
	if len(errs) > 0 {
		return strings.Join(errs, "; ")
	}
	if text := s.m.logTail(fileConsole, keep); text != "" {
		return "the console ends with: " + text
	}
	return "nothing on the console"
}

// poll pings the emulated host repeatedly. For every answer with the given boot id, it sends a
// value to pongs.
func poll(ctx context.Context, c *client, bootID string, pongs chan<- struct{}) {
	every, limit := pingBootEvery, pingBootEvery
	for {
		next := time.After(every)
		if p, err := c.ping(ctx, limit); err == nil && p.BootID == bootID {
			every, limit = pingEvery, pingLimit
			select {
			case pongs <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// shutDown stops the emulated host in an orderly way. If a step takes too long, it kills QEMU.
func (s *supervisor) shutDown(cmd *exec.Cmd, exited <-chan error) {
	s.state.Phase = Stopping
	if err := s.m.writeState(s.state); err != nil {
		log.Print(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), powerOffLimit)
	defer cancel()
	c := newClient(s.state.InitAddr, s.token)
	defer c.close()
	if !listens(cmd.Process.Pid, []string{s.state.InitAddr}) {
		log.Print("QEMU does not listen yet: nothing is asked to power off") // no other program must get the token
	} else if err := c.do(ctx, http.MethodPost, machineapi.PathPowerOff, nil, nil); err != nil {
		log.Printf("power off: %v", err)
	} else {
		select {
		case <-exited:
			return
		case <-ctx.Done():
			log.Printf("still there %v after power off", powerOffLimit)
		}
	}
	// On SIGTERM QEMU flushes its disks and exits.
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		log.Printf("terminate QEMU: %v", err)
	}
	select {
	case <-exited:
	case <-time.After(qemuExitLimit):
		log.Printf("QEMU ignores SIGTERM: killed")
		kill(cmd, exited)
	}
}

// kill kills QEMU and waits for its exit.
func kill(cmd *exec.Cmd, exited <-chan error) {
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		log.Printf("kill QEMU: %v", err)
	}
	<-exited
}
