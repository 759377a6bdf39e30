package agentclient

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/envdproto/process"
	"github.com/forkd/forkd/internal/proto/envdproto/process/processconnect"
)

// ExecRequest is a command to run in the guest.
type ExecRequest struct {
	Args      []string // command and arguments, which no shell interprets
	Env       map[string]string
	Cwd       string        // empty: the user's home
	User      string        // empty: the guest's default user
	UserElse  string        // account to use instead of root, if it exists and the guest has no default user
	Stdin     io.Reader     // nil: /dev/null, unless OpenStdin or Terminal is set
	OpenStdin bool          // stdin stays open for Process.Input; Stdin must be nil
	Terminal  *Size         // if set, the command gets a terminal; all its output is then Stdout
	Timeout   time.Duration // after this time, the guest kills the command's process group; 0: no timeout
	MaxOutput int           // for Exec: maximum bytes of each of stdout and stderr; 0: 8 MiB

	// Started, if set, is called as soon as the command runs. If it returns an error, the command
	// is killed, as after an error of the sink.
	Started func(*Process) error
}

// Outcome says how a command ended.
type Outcome string

const (
	Exited        Outcome = "exited"         // ExitCode is set
	Signaled      Outcome = "signaled"       // Signal is set
	TimedOut      Outcome = "timeout"        // killed because ExecRequest.Timeout passed
	NotFound      Outcome = "not_found"      // not started: there is no such command
	NotExecutable Outcome = "not_executable" // not started: the file cannot be executed
)

// ExecResult says how a command ended, and has its output.
type ExecResult struct {
	Outcome         Outcome
	ExitCode        int // -1 unless Outcome is Exited
	Signal          syscall.Signal
	Status          string // in words, such as "exit status 2" or "signal: killed"
	Stdout          []byte
	Stderr          []byte
	StdoutTruncated bool // the command wrote more than MaxOutput bytes, and the rest was dropped
	StderrTruncated bool
}

// Err returns nil if the command exited by itself, with any exit code, and its output is complete.
// In all other cases, it returns an error that wraps one of the Err variables of this package.
func (r ExecResult) Err() error {
	switch {
	case r.Outcome == TimedOut:
		return ErrTimeout
	case r.Outcome == NotFound:
		return fmt.Errorf("%w: %s", ErrCommandNotFound, r.Status)
	case r.Outcome == NotExecutable:
		return fmt.Errorf("%w: %s", ErrNotExecutable, r.Status)
	case r.Outcome == Signaled:
		return fmt.Errorf("%w: %s", ErrSignaled, strings.TrimPrefix(r.Status, "signal: "))
	case r.StdoutTruncated || r.StderrTruncated:
		return ErrOutputTruncated
	}
	return nil
}

// Stream names an output of a command.
type Stream int

const (
	Stdout Stream = iota + 1
	Stderr
)

var errExcess = errors.New("too much output")

// Exec runs a command and collects its output. If the guest has reported how the command ended, the
// error is nil; see ExecResult.Outcome. If the guest has refused the request, for example because
// of an unknown user or directory, the error is an *Error.
func (c *Client) Exec(ctx context.Context, req ExecRequest) (ExecResult, error) {
	limit := req.MaxOutput
	if limit <= 0 {
		limit = defaultMaxOutput
	}
	var stdout, stderr capped
	stdout.limit, stderr.limit = limit, limit
	total := 0
	r, err := c.ExecStream(ctx, req, func(s Stream, p []byte) error {
		if total += len(p); total > maxTotal(limit) {
			return errExcess
		}
		out := &stderr
		if s == Stdout {
			out = &stdout
		}
		if err := keep(c.Keep, min(len(p), out.room())); err != nil {
			return err
		}
		out.add(p)
		return nil
	})
	if errors.Is(err, errExcess) {
		r, err = ExecResult{Outcome: Signaled, ExitCode: -1, Signal: syscall.SIGKILL,
			Status: fmt.Sprintf("killed after %d bytes of output", total)}, nil
		stdout.truncated = true
	}
	r.Stdout, r.StdoutTruncated = stdout.buf.Bytes(), stdout.truncated
	r.Stderr, r.StderrTruncated = stderr.buf.Bytes(), stderr.truncated
	return r, err
}

// ExecStream runs a command and passes its output to the given sink as it arrives, from one
// goroutine. If the sink returns an error, the command is killed, and ExecStream returns the error.
// If ctx ends first, the command is also killed.
func (c *Client) ExecStream(ctx context.Context, req ExecRequest, sink func(Stream, []byte) error) (ExecResult, error) {
	none := ExecResult{ExitCode: -1}
	if len(req.Args) == 0 || req.Args[0] == "" {
		return none, &Error{Op: "exec", Code: CodeInvalid, Message: "args is empty; name a command"}
	}
	callCtx, cancel := context.WithCancel(ctx)
	if req.Timeout > 0 {
		callCtx, cancel = context.WithTimeout(ctx, req.Timeout)
	}
	defer cancel()
	run := execCall{client: c, req: req, sink: sink, started: make(chan struct{})}
	result, err := run.untilStarted(callCtx)
	if err == nil {
		return result, nil
	}
	// The guest's clock may reach the deadline slightly before the host's clock does.
	var refused *Error
	deadline := callCtx.Err() != nil || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &refused) && refused.Code == CodeTimeout
	if req.Timeout > 0 && ctx.Err() == nil && deadline && run.sinkErr == nil {
		// Report a timeout. The guest has the same deadline and kills the process itself.
		status := fmt.Sprintf("timed out after %v", req.Timeout)
		if run.pid == 0 {
			status += ", and the guest did not say that the command had started"
		}
		return ExecResult{Outcome: TimedOut, ExitCode: -1, Status: status}, nil
	}
	if run.pid != 0 && !errors.Is(err, ErrDetached) && !errors.Is(context.Cause(ctx), ErrDetached) {
		run.kill(context.WithoutCancel(ctx))
	}
	return none, err
}

// ErrDetached ends an ExecStream without killing the command. It can be the cause of the context's
// cancellation, or an error that Started or the sink returns.
var ErrDetached = errors.New("the command goes on by itself")

// ExecDetached starts a command and leaves it running. Its output is lost while no client is
// attached to it. If the command could not be started, the *Process is nil, and the ExecResult says
// why.
func (c *Client) ExecDetached(ctx context.Context, req ExecRequest) (started *Process, r ExecResult, err error) {
	req.Started = func(p *Process) error {
		started = p
		return ErrDetached
	}
	r, err = c.ExecStream(ctx, req, func(Stream, []byte) error { return ErrDetached })
	if errors.Is(err, ErrDetached) {
		err = nil
	}
	return started, r, err
}

type execCall struct {
	client  *Client
	req     ExecRequest
	sink    func(Stream, []byte) error
	sinkErr error // error that the sink or ExecRequest.Started has returned
	pid     uint32
	started chan struct{} // closed when e.pid is set
}

// untilStarted is like the method stream. But if the context ends before the guest has reported the
// process id, untilStarted waits for the id for a moment. A process can be killed only if its id is
// known.
func (e *execCall) untilStarted(ctx context.Context) (ExecResult, error) {
	call, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if deadline, ok := ctx.Deadline(); ok { // the guest gets the same deadline
		var end context.CancelFunc
		call, end = context.WithDeadline(call, deadline)
		defer end()
	}
	defer context.AfterFunc(ctx, func() {
		select {
		case <-e.started:
		case <-time.After(killTimeout):
		case <-call.Done():
		}
		cancel()
	})()
	r, err := e.stream(call)
	var refused *Error
	if err != nil && e.sinkErr == nil && ctx.Err() != nil && !errors.As(err, &refused) {
		err = fmt.Errorf("exec %.100q: %w", e.req.Args[0], ctx.Err())
	}
	return r, err
}

func (e *execCall) stream(ctx context.Context) (ExecResult, error) {
	none := ExecResult{ExitCode: -1}
	stdin := e.req.Stdin != nil || e.req.OpenStdin
	cfg := &process.ProcessConfig{Cmd: e.req.Args[0], Args: e.req.Args[1:], Envs: e.req.Env}
	if e.req.Cwd != "" {
		cfg.Cwd = &e.req.Cwd
	}
	req := connect.NewRequest(&process.StartRequest{Process: cfg, Stdin: &stdin, Pty: e.req.Terminal.message()})
	setUser(req.Header(), e.req.User)
	if e.req.UserElse != "" {
		req.Header().Set(agentproto.DefaultUserHeader, e.req.UserElse)
	}
	op := fmt.Sprintf("exec %.100q", e.req.Args[0])
	stream, err := follow[process.StartRequest, process.StartResponse](ctx, e.client, processconnect.ProcessStartProcedure,
		req)
	if err != nil {
		return none, remote(op, err)
	}
	defer stream.Close()
	for stream.Receive() {
		end, err := e.event(ctx, stream.Msg().GetEvent())
		if err != nil || end != nil {
			return ended(end), err
		}
	}
	return notStarted(op, stream.Err())
}

// event handles one event of a process. It returns the last event, which says how the process
// ended, and nil for all other events.
func (e *execCall) event(ctx context.Context, event *process.ProcessEvent) (*process.ProcessEvent_EndEvent, error) {
	switch ev := event.GetEvent().(type) {
	case *process.ProcessEvent_Start:
		if e.pid != 0 { // ignore a repeated event, so that only one goroutine reads the input
			return nil, nil
		}
		e.pid = max(ev.Start.GetPid(), 1) // 0 is not a process id
		close(e.started)
		if e.req.Started != nil {
			e.sinkErr = e.req.Started(e.client.Process(e.pid))
		}
		if e.req.Stdin != nil {
			go e.feed(ctx)
		}
	case *process.ProcessEvent_Data:
		e.sinkErr = e.deliver(ev.Data)
	case *process.ProcessEvent_End:
		return ev.End, nil
	}
	return nil, e.sinkErr
}

func (e *execCall) deliver(d *process.ProcessEvent_DataEvent) error {
	switch out := d.GetOutput().(type) {
	case *process.ProcessEvent_DataEvent_Stdout:
		return e.sink(Stdout, out.Stdout)
	case *process.ProcessEvent_DataEvent_Stderr:
		return e.sink(Stderr, out.Stderr)
	case *process.ProcessEvent_DataEvent_Pty:
		return e.sink(Stdout, out.Pty)
	}
	return nil
}

func ended(end *process.ProcessEvent_EndEvent) ExecResult {
	if end == nil {
		return ExecResult{ExitCode: -1}
	}
	status := cut(end.GetStatus(), maxText)
	if end.GetExited() {
		return ExecResult{Outcome: Exited, ExitCode: int(end.GetExitCode()), Status: status}
	}
	return ExecResult{Outcome: Signaled, ExitCode: -1, Signal: signalOf(status), Status: status}
}

// signalOf returns the signal in a status such as "signal: killed (core dumped)", which names
// signals as package syscall does. It returns 0 if the status names no signal.
func signalOf(status string) syscall.Signal {
	words, _, _ := strings.Cut(strings.TrimPrefix(status, "signal: "), " (")
	for s := syscall.Signal(1); s <= maxSignal; s++ {
		if s.String() == words {
			return s
		}
	}
	return 0
}

// maxSignal is the highest signal of Linux, SIGRTMAX.
const maxSignal = 64

// notStarted returns the result for a command that could not be started. If err has a cause other
// than the command, notStarted returns err instead. In the answer to Start, the codes not_found and
// permission_denied can only refer to the command.
func notStarted(op string, err error) (ExecResult, error) {
	none := ExecResult{ExitCode: -1}
	if err == nil {
		return none, fmt.Errorf("%s: the stream ended without the process's end", op)
	}
	var ce *connect.Error
	if errors.As(err, &ce) && connect.IsWireError(err) {
		switch ce.Code() {
		case connect.CodeNotFound:
			return ExecResult{Outcome: NotFound, ExitCode: -1, Status: cut(ce.Message(), maxText)}, nil
		case connect.CodePermissionDenied:
			return ExecResult{Outcome: NotExecutable, ExitCode: -1, Status: cut(ce.Message(), maxText)}, nil
		}
	}
	return none, remote(op, err)
}

// feed copies the request's stdin to the process, and then closes the process's stdin. It reports
// no errors, because a process may exit or close its stdin early.
func (e *execCall) feed(ctx context.Context) {
	p := e.client.Process(e.pid)
	for buf := make([]byte, 1<<20); ; {
		n, err := io.ReadFull(e.req.Stdin, buf)
		if n > 0 {
			if p.Input(ctx, buf[:n]) != nil {
				return
			}
		}
		if err != nil {
			_ = p.CloseStdin(ctx)
			return
		}
	}
}

// killTimeout is the time limit of the attempt to kill a process when the context of ExecStream has
// ended.
const killTimeout = 5 * time.Second

func (e *execCall) kill(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	_ = e.client.Process(e.pid).Signal(ctx, syscall.SIGKILL)
}

// setUser names the user of the guest as E2B's SDKs do: by basic authentication with an empty
// password.
func setUser(h interface{ Set(k, v string) }, user string) {
	if user != "" {
		h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	}
}

// capped is a buffer that keeps the first limit bytes and drops the rest.
type capped struct {
	buf       bytes.Buffer
	limit     int
	truncated bool
}

// keep asks whether n more bytes may be kept in memory. The function ask is Client.Keep, and may be
// nil.
func keep(ask func(int) error, n int) error {
	if ask == nil || n <= 0 {
		return nil
	}
	return ask(n)
}

func (c *capped) room() int { return c.limit - c.buf.Len() }

func (c *capped) add(p []byte) {
	if room := c.room(); len(p) > room {
		p, c.truncated = p[:room], true
	}
	c.buf.Write(p)
}

// addText is like add, but does not copy the whole text.
func (c *capped) addText(text string) {
	if room := c.room(); len(text) > room {
		text, c.truncated = text[:room], true
	}
	c.buf.WriteString(text)
}
