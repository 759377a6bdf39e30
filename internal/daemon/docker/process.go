package docker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/pause"
)

// Exit codes that Docker reports for processes that did not exit by themselves.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitUnknown       = 255
	exitSignal        = 128 // plus the number of the signal
)

// Time limits.
const (
	maxStart   = time.Minute      // until a process of the guest runs
	controlFor = 30 * time.Second // of a short request to a guest, such as a signal
	reattach   = 2 * time.Second  // interval of attempts to reach a process whose sandbox does not run
)

// process is a process of a guest that this package follows: the main process of a container, or an
// exec.
type process struct {
	sandbox string
	view    *tenancy.View
	out     *output
	tty     bool

	running chan struct{} // closed when the process runs, or could not be started
	ended   chan struct{} // closed when the process has ended; after that, the fields code and err do not change

	mu   sync.Mutex
	size *agentclient.Size // of the terminal; nil: there is none, or its size is the guest's choice
	pid  uint32            // 0: the process does not run
	code int
	err  error // why the process could not be started or followed

	notStarted error // why the process could not be started
}

func newProcess(id string, view *tenancy.View, out *output, tty bool, size *agentclient.Size) *process {
	return &process{sandbox: id, view: view, out: out, tty: tty, size: size, running: make(chan struct{}),
		ended: make(chan struct{})}
}

// command is what a process runs.
type command struct {
	args      []string
	env       map[string]string
	user, dir string
	makesDir  bool // the directory is made if it is missing
	stdin     bool
}

// begin starts a process and follows it in a goroutine. It calls ended() at the end of the process,
// before p.ended is closed. begin returns nil when the process runs, or an error that says why it
// could not be started.
func (s *Server) begin(p *process, cmd command, ended func()) error {
	s.tasks.Go(func() {
		p.finish(s.run(p, cmd))
		ended()
		close(p.ended)
		p.out.end()
	})
	<-p.running // within maxStart
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.notStarted
}

// follow follows a process that an earlier daemon has started, until the process ends. If pid is 0,
// the earlier daemon has not recorded the PID of the process. follow then searches for the process,
// and calls found(pid) with its PID.
func (s *Server) follow(p *process, pid uint32, args []string, found func(pid uint32), ended func()) {
	p.started(pid)
	s.tasks.Go(func() {
		p.finish(func() (int, error) {
			if pid == 0 {
				started, err := s.search(p, args)
				if err != nil {
					return exitUnknown, err
				}
				p.started(started)
				found(started)
			}
			return s.attachTo(p)
		}())
		ended()
		close(p.ended)
		p.out.end()
	})
}

// search returns the PID of the oldest process of the guest that runs a command.
func (s *Server) search(p *process, args []string) (pid uint32, err error) {
	for {
		var all []agentclient.ProcessInfo
		err := p.view.Use(s.life, p.sandbox, "find a process of", func(ctx context.Context,
			dial agentclient.DialFunc) (err error) {
			ctx, cancel := context.WithTimeout(ctx, controlFor)
			defer cancel()
			all, err = agentclient.New(dial).Processes(ctx)
			return err
		})
		n := slices.IndexFunc(all, func(i agentclient.ProcessInfo) bool { return slices.Equal(i.Args, args) })
		switch {
		case err == nil && n < 0:
			return 0, errors.New("the daemon ended while it started the process, so its exit code is unknown")
		case err == nil:
			return all[n].PID, nil
		case !s.retry(p):
			return 0, s.lost(err)
		}
	}
}

// retry waits before another attempt to reach a process. It returns false if the sandbox has ended,
// or if the daemon stops.
func (s *Server) retry(p *process) bool {
	if i, gone := p.view.Sandbox(p.sandbox); gone != nil || i.State == sandbox.Exited || i.State == sandbox.Stopping {
		return false
	}
	return pause.For(s.life, reattach) == nil
}

// lost returns the error for a process that cannot be reached, and so is not followed any more.
func (s *Server) lost(err error) error {
	if s.life.Err() != nil {
		return agentclient.ErrDetached
	}
	return fmt.Errorf("the container's virtual machine has ended: %w", err)
}

func (p *process) started(pid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid = pid; pid != 0 {
		close(p.running)
	}
}

// awaitStart waits until the process has started, or has ended. A signal before that would be lost:
// the container's record says "running" shortly before the process starts, and also before a new
// daemon has found the process.
func (p *process) awaitStart(ctx context.Context) error {
	select {
	case <-p.running:
	case <-p.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// finish records how the process has ended.
func (p *process) finish(code int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.code, p.err = code, err
	if p.pid == 0 {
		p.notStarted = err
		close(p.running)
	}
	p.pid = 0
}

// end returns the exit code of a process that has ended.
func (p *process) end() (code int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code, p.err
}

// run runs a command until it ends.
func (s *Server) run(p *process, cmd command) (code int, err error) {
	req := agentclient.ExecRequest{Args: cmd.args, Env: cmd.env, User: cmd.user, Cwd: cmd.dir, OpenStdin: cmd.stdin,
		Started: func(ap *agentclient.Process) error {
			p.started(ap.PID)
			return nil
		}}
	if p.tty {
		p.mu.Lock()
		req.Terminal = p.size
		p.mu.Unlock()
		if req.Terminal == nil {
			req.Terminal = &agentclient.Size{}
		}
	}
	start, cancel := context.WithCancelCause(s.life)
	defer cancel(nil)
	late := time.AfterFunc(maxStart, func() {
		if !p.isRunning() {
			cancel(errLate)
		}
	})
	defer late.Stop()
	var res agentclient.ExecResult
	err = p.view.Use(start, p.sandbox, "exec in", func(ctx context.Context, dial agentclient.DialFunc) (err error) {
		if cmd.makesDir {
			if err := makeDir(ctx, agentclient.New(dial), cmd); err != nil {
				return err
			}
		}
		res, err = agentclient.New(dial).ExecStream(ctx, req, p.sink)
		return err
	})
	switch {
	case err != nil && p.isRunning():
		return s.attachTo(p)
	case err != nil && errors.Is(context.Cause(start), errLate):
		err = errLate
	}
	return p.result(cmd.args, res, err)
}

// errLate is the error of a process that does not start within maxStart.
var errLate = face.NewError(http.StatusGatewayTimeout, fmt.Sprintf("the guest did not start the process within %v",
	maxStart))

// makeDir makes the directory in which a command starts, as Docker does.
func makeDir(ctx context.Context, guest *agentclient.Client, cmd command) error {
	_, err := guest.MakeDir(ctx, cmd.dir, cmd.user)
	var failed *agentclient.Error
	if errors.As(err, &failed) && failed.Code == agentclient.CodeExists {
		return nil
	}
	return err
}

func (p *process) sink(from agentclient.Stream, text []byte) error {
	p.out.write(from, text)
	return nil
}

func (p *process) isRunning() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid != 0
}

// attachTo follows a running process until it ends. During this time, the sandbox may be suspended
// and resumed.
func (s *Server) attachTo(p *process) (code int, err error) {
	p.mu.Lock()
	pid := p.pid
	p.mu.Unlock()
	for {
		var res agentclient.ExecResult
		err := p.view.Use(s.life, p.sandbox, "follow a process of", func(ctx context.Context,
			dial agentclient.DialFunc) (err error) {
			res, err = agentclient.New(dial).Attach(ctx, pid, nil, p.sink)
			return err
		})
		var lost *agentclient.Error
		switch {
		case err == nil:
			return p.result(nil, res, nil)
		case errors.As(err, &lost) && lost.Code == agentclient.CodeNotFound:
			return exitUnknown, errors.New("the process ended while the daemon did not follow it, so its exit code is unknown")
		case s.life.Err() != nil || !s.retry(p):
			return exitSignal + int(syscall.SIGKILL), s.lost(err)
		}
	}
}

// result returns the exit code of a command as Docker reports it. The error says why the command was
// not started. Docker's client derives its own exit code from the words of this error.
func (p *process) result(args []string, res agentclient.ExecResult, err error) (int, error) {
	if err != nil {
		return exitNotFound, err
	}
	switch res.Outcome {
	case agentclient.Exited:
		return res.ExitCode, nil
	case agentclient.NotFound:
		return exitNotFound, face.BadRequest("exec: %.200q: executable file not found in $PATH: unknown", first(args))
	case agentclient.NotExecutable:
		return exitNotExecutable, face.BadRequest("exec: %.200q: permission denied: unknown", first(args))
	}
	if res.Signal == 0 { // killed by a signal that this host does not know
		return exitSignal + int(syscall.SIGKILL), nil
	}
	return exitSignal + int(res.Signal), nil
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// use calls f with the process in the guest. If the process does not run, use does nothing.
func (p *process) use(ctx context.Context, f func(context.Context, *agentclient.Process) error) error {
	p.mu.Lock()
	pid := p.pid
	p.mu.Unlock()
	if pid == 0 {
		return nil
	}
	return p.view.Use(ctx, p.sandbox, "reach a process of", func(ctx context.Context, dial agentclient.DialFunc) error {
		return f(ctx, agentclient.New(dial).Process(pid))
	})
}

// signal sends a signal to the process and its process group. If the process has ended, signal
// returns no error.
func (p *process) signal(ctx context.Context, sig syscall.Signal) error {
	if sig == syscall.SIGKILL {
		p.out.rush(p.ended)
	}
	ctx, cancel := context.WithTimeout(ctx, controlFor)
	defer cancel()
	err := p.use(ctx, func(ctx context.Context, ap *agentclient.Process) error { return ap.Signal(ctx, sig) })
	return unlessEnded(err)
}

// unlessEnded returns nil for an error that says that the process has ended.
func unlessEnded(err error) error {
	var ended *agentclient.Error
	if errors.As(err, &ended) && ended.Code == agentclient.CodeNotFound {
		return nil
	}
	return err
}

// resize changes the size of the process's terminal. If the process does not run yet, its terminal
// will have this size.
func (p *process) resize(ctx context.Context, size agentclient.Size) error {
	if !p.tty {
		return nil
	}
	p.mu.Lock()
	p.size = &size
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, controlFor)
	defer cancel()
	err := p.use(ctx, func(ctx context.Context, ap *agentclient.Process) error { return ap.Resize(ctx, size) })
	return unlessEnded(err)
}

// signalOf parses a signal: a number, or a name with or without SIG.
func signalOf(text string) (syscall.Signal, error) {
	name := strings.ToUpper(text)
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); sig != 0 {
		return sig, nil
	}
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= maxSignal {
		return syscall.Signal(n), nil
	}
	return 0, face.BadRequest("invalid signal: %.100q: want a name such as SIGTERM, or a number", text)
}

// maxSignal is the highest signal of Linux.
const maxSignal = 64

// sizeQuery returns the size of a terminal in the query of a request.
func sizeQuery(r *http.Request) (size agentclient.Size, err error) {
	rows, err := intQuery(r, "h", 0, 0, math.MaxUint16)
	if err != nil {
		return size, err
	}
	cols, err := intQuery(r, "w", 0, 0, math.MaxUint16)
	return agentclient.Size{Cols: uint16(cols), Rows: uint16(rows)}, err
}
