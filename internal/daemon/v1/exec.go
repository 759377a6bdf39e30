package v1

import (
	"bytes"
	"context"
	"maps"
	"math"
	"net/http"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// onGuest calls f with a client of the guest that a request names. The guest's answers count
// against the request's share of memory.
func (a *api) onGuest(ctx context.Context, r *http.Request, op string,
	f func(context.Context, *agentclient.Client) error) error {
	use := a.view(r).Use
	if looks(r) {
		use = a.view(r).LookAt
	}
	return use(ctx, r.PathValue("id"), op, func(ctx context.Context, dial agentclient.DialFunc) error {
		guest := agentclient.New(dial)
		guest.Keep = face.ShareOf(r).Keep
		return f(ctx, guest)
	})
}

// looks reports whether a request changes neither files nor processes of a sandbox. A WebSocket
// begins with a GET, but its messages may change files and processes.
func looks(r *http.Request) bool {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	return reads && r.Header.Get("Upgrade") == "" || strings.HasSuffix(r.Pattern, "/ping")
}

// runOn is like onGuest, but for a command. If the command timed out because its sandbox is paused,
// the error says this, and says how to resume the sandbox. The client may not know that the sandbox
// is paused, because the daemon pauses a sandbox when the host's disk is full.
func (a *api) runOn(ctx context.Context, r *http.Request, op string,
	f func(context.Context, *agentclient.Client) (agentclient.ExecResult, error)) (
	res agentclient.ExecResult, err error) {
	err = a.onGuest(ctx, r, op, func(ctx context.Context, guest *agentclient.Client) (err error) {
		res, err = f(ctx, guest)
		return err
	})
	if err != nil || res.Outcome != agentclient.TimedOut {
		return res, err
	}
	return res, a.paused(r, r.PathValue("id"), op)
}

// paused returns an error if a sandbox is paused.
func (a *api) paused(r *http.Request, id, op string) error {
	i, err := a.view(r).Sandbox(id)
	if err != nil {
		return err
	}
	if i.State == sandbox.Paused {
		return &sandbox.StateError{ID: i.ID, Op: op, State: i.State, Full: i.DiskFull}
	}
	return nil
}

func (a *api) ping(r *http.Request) (out apiv1.Pong, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), maxPingDelay)
	defer cancel()
	var ready agentproto.Ready
	err = a.onGuest(ctx, r, "ping", func(ctx context.Context, guest *agentclient.Client) (err error) {
		ready, err = guest.Ping(ctx)
		return err
	})
	if err != nil {
		return out, err
	}
	return apiv1.Pong{
		Pong: true, WarmupReady: true, Kernel: ready.Kernel, Warm: append([]string{}, ready.Warm...), Errors: ready.Errors,
	}, nil
}

// exitCodeOf returns the exit code that a shell would report for the end of a command.
func exitCodeOf(r agentclient.ExecResult) int {
	switch r.Outcome {
	case agentclient.Exited:
		return r.ExitCode
	case agentclient.TimedOut:
		return 124
	case agentclient.NotExecutable:
		return 126
	case agentclient.NotFound:
		return 127
	}
	if r.Signal == 0 { // killed by a signal that this host does not know
		return 128 + int(syscall.SIGKILL)
	}
	return 128 + int(r.Signal)
}

func execEnd(r agentclient.ExecResult) apiv1.ExecEnd {
	end := apiv1.ExecEnd{ExitCode: exitCodeOf(r), Outcome: string(r.Outcome), Status: r.Status,
		TimedOut: r.Outcome == agentclient.TimedOut}
	if r.Signal != 0 {
		end.Signal = unix.SignalName(r.Signal)
	}
	if err := r.Err(); err != nil {
		end.Error = err.Error()
	}
	return end
}

// times is a pair of bounds: the default and the maximum of the time that a command may run. 0
// means unlimited.
type times struct{ def, most time.Duration }

// waited returns the bounds for a command whose client waits for its end. openEnded returns the
// bounds for other commands.
func waited() times    { return times{defaultExec, maxExec} }
func openEnded() times { return times{0, maxUnwatched} }

// checkExec checks a request and converts it to the agent's form.
func checkExec(req *apiv1.ExecRequest, limit times) (run agentclient.ExecRequest, err error) {
	if err := checkArgs("args", req.Args); err != nil {
		return run, err
	}
	if err := checkEnv(req.Env); err != nil {
		return run, err
	}
	if strings.ContainsRune(req.Cwd, 0) {
		return run, face.BadRequest("cwd: contains a NUL byte")
	}
	if len(req.Stdin) > maxStdin {
		return run, face.BadRequest("stdin: %d bytes: want at most %d", len(req.Stdin), maxStdin)
	}
	if len(req.Stdin) > 0 && (req.OpenStdin || req.TTY != nil || req.Detach) {
		return run, face.BadRequest("stdin: excludes open_stdin, tty and detach: send input to the process")
	}
	timeout, err := face.Seconds("timeout_secs", req.TimeoutSecs, limit.def, limit.most)
	if err != nil {
		return run, err
	}
	run = agentclient.ExecRequest{
		Args: req.Args, Env: req.Env, Cwd: req.Cwd, User: req.User, Timeout: timeout, MaxOutput: maxOutput,
		OpenStdin: req.OpenStdin,
	}
	if len(req.Stdin) > 0 {
		run.Stdin = bytes.NewReader(req.Stdin)
	}
	if req.TTY != nil {
		size, err := checkSize("tty", *req.TTY)
		if err != nil {
			return run, err
		}
		run.Terminal = &size
		if run.Env["TERM"] == "" { // without TERM, programs assume a terminal that has no capabilities
			run.Env = maps.Clone(run.Env)
			if run.Env == nil {
				run.Env = map[string]string{}
			}
			run.Env["TERM"] = defaultTerm
		}
	}
	return run, nil
}

// checkArgs checks a command and its arguments. Errors quote the name of the command's field in the
// request (field).
func checkArgs(field string, args []string) error {
	switch {
	case len(args) == 0:
		return face.BadRequest("%s: no command: want the command and its arguments", field)
	case args[0] == "":
		return face.BadRequest("%s[0]: the command is empty", field)
	case len(args) > maxArgs:
		return face.BadRequest("%s: %d of them: want at most %d", field, len(args), maxArgs)
	}
	for i, arg := range args {
		if strings.ContainsRune(arg, 0) {
			return face.BadRequest("%s[%d]: contains a NUL byte", field, i)
		}
	}
	return nil
}

// defaultTerm is the terminal type that most of today's terminals support.
const defaultTerm = "xterm-256color"

func checkSize(field string, s apiv1.TTYSize) (agentclient.Size, error) {
	if s.Cols > math.MaxUint16 || s.Rows > math.MaxUint16 {
		return agentclient.Size{}, face.BadRequest("%s: %d by %d: want at most %d each",
			field, s.Cols, s.Rows, math.MaxUint16)
	}
	return agentclient.Size{Cols: uint16(s.Cols), Rows: uint16(s.Rows)}, nil
}

// maxEnv bounds the number of variables in a request.
const maxEnv = 256

// checkEnv refuses names and values that an environment cannot contain.
func checkEnv(env map[string]string) error {
	if len(env) > maxEnv {
		return face.BadRequest("env: %d variables: want at most %d", len(env), maxEnv)
	}
	for name, value := range env {
		switch {
		case name == "":
			return face.BadRequest("env: a name is empty")
		case strings.ContainsAny(name, "=\x00"):
			return face.BadRequest("env: name %q: contains '=' or a NUL byte", name)
		case strings.ContainsRune(value, 0):
			return face.BadRequest("env: value of %q: contains a NUL byte", name)
		}
	}
	return nil
}

func (a *api) exec(w http.ResponseWriter, r *http.Request) error {
	var req apiv1.ExecRequest
	if err := face.ReadLongJSON(w, r, &req, maxExecBody); err != nil {
		return err
	}
	limit, inLines := waited(), strings.Contains(r.Header.Get("Accept"), apiv1.NDJSON)
	switch {
	case req.Detach:
		limit = openEnded()
	case inLines:
		limit.most = maxUnwatched // the client receives keepalives, so a longer limit applies
	}
	run, err := checkExec(&req, limit)
	if err != nil {
		return err
	}
	if req.Detach {
		return a.execDetached(w, r, run)
	}
	if inLines {
		return a.streamLines(w, r, "exec in", true, func(ctx context.Context, guest *agentclient.Client,
			o output) (agentclient.ExecResult, error) {
			run.Started = o.started
			return guest.ExecStream(ctx, run, o.data)
		})
	}
	res, err := a.runOn(r.Context(), r, "exec in", func(ctx context.Context,
		guest *agentclient.Client) (agentclient.ExecResult, error) {
		return guest.Exec(ctx, run)
	})
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusOK, execResult(res))
}

func execResult(res agentclient.ExecResult) apiv1.ExecResult {
	answer := apiv1.ExecResult{ExecEnd: execEnd(res), StdoutTruncated: res.StdoutTruncated,
		StderrTruncated: res.StderrTruncated}
	answer.Stdout, answer.StdoutBytes = textOf(res.Stdout)
	answer.Stderr, answer.StderrBytes = textOf(res.Stderr)
	return answer
}

// execDetached starts a command and answers as soon as it is running.
func (a *api) execDetached(w http.ResponseWriter, r *http.Request, run agentclient.ExecRequest) error {
	ctx, cancel := context.WithTimeout(r.Context(), maxStart)
	defer cancel()
	var started *agentclient.Process
	var res agentclient.ExecResult
	err := a.onGuest(ctx, r, "exec in", func(ctx context.Context, guest *agentclient.Client) (err error) {
		started, res, err = guest.ExecDetached(ctx, run)
		return err
	})
	if err != nil {
		return err
	}
	if started == nil {
		return face.BadRequest("args: %v", res.Err())
	}
	return face.WriteJSON(w, r, http.StatusCreated, apiv1.ExecStarted{PID: started.PID})
}

func (a *api) eval(r *http.Request, req *apiv1.EvalRequest) (out apiv1.EvalResult, err error) {
	if req.Language != "" && req.ContextID != "" {
		return out, face.BadRequest("language and context_id exclude each other: a context has its language")
	}
	if err := checkEnv(req.Env); err != nil {
		return out, err
	}
	timeout, err := face.Seconds("timeout_secs", req.TimeoutSecs, defaultExec, maxExec)
	if err != nil {
		return out, err
	}
	var res agentclient.EvalResult
	err = a.onGuest(r.Context(), r, "eval in", func(ctx context.Context, guest *agentclient.Client) (err error) {
		res, err = guest.Eval(ctx, req.Code, agentclient.EvalOptions{
			ContextID: req.ContextID, Language: req.Language, Env: req.Env, Timeout: timeout, MaxOutput: maxOutput,
		})
		return err
	})
	if err != nil {
		return out, err
	}
	answer := apiv1.EvalResult{TimedOut: res.TimedOut, Truncated: res.Truncated}
	answer.Stdout, _ = textOf(res.Stdout)
	answer.Stderr, _ = textOf(res.Stderr)
	if res.Result != nil {
		result, _ := textOf([]byte(*res.Result))
		answer.Result = &result
	}
	switch {
	case res.Restarted:
		answer.Error, answer.ExitCode = "timed out after "+timeout.String()+
			"; the code went on when it was interrupted, so its "+
			"interpreter was killed: its variables are lost, the next call starts a new one", 124
	case res.TimedOut:
		answer.Error, answer.ExitCode = "timed out after "+timeout.String(), 124
	case res.Error != nil:
		answer.Error, _ = textOf([]byte(res.Error.Error()))
		answer.Traceback, _ = textOf([]byte(res.Error.Traceback))
		answer.ExitCode = 1
	case res.Truncated:
		answer.Error = agentclient.ErrOutputTruncated.Error()
	}
	return answer, nil
}
