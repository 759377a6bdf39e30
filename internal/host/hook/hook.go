// Package hook runs the hooks of a sandbox: commands that its owner has set for operations such as
// a branch.
//
// It runs one hook at a time, with a time limit and a bound on the output, and applies the hook's
// policy to a failure. It does not decide which operation runs a hook, and holds no lock or place of
// the daemon.
package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Point is the name of a hook. It says when the hook runs.
type Point string

const (
	BeforeBranch  Point = "before_branch"
	AfterFork     Point = "after_fork"
	BeforeSuspend Point = "before_suspend"
	AfterResume   Point = "after_resume"
)

// nameEnv is the variable in a hook's environment that has the hook's name.
const nameEnv = "FORKD_HOOK"

// Bounds on a hook's output.
const (
	maxOutput   = 1 << 20 // bytes; a hook that writes more is killed
	maxQuote    = 1 << 10 // bytes at the end of the output that are kept for an error
	quotedLines = 5
)

// Error is the failure of a hook whose policy is to abort the operation.
type Error struct {
	ID    string // id of the sandbox
	Point Point
	Err   error
}

func (e *Error) Error() string {
	return fmt.Sprintf("sandbox %q: hook %s failed: %v", e.ID, e.Point, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Runner runs hooks. If a failure does not abort the operation, the Runner emits an event;
// otherwise the client gets the error. The log has failures only at the level debug, because any
// client can cause them.
type Runner struct {
	Log    *slog.Logger
	Events *event.Ring
}

// Of returns the hook for the given point, or nil if there is no such hook.
func Of(hooks snapshot.Hooks, at Point) (found *snapshot.Hook) {
	hooks.Each(func(name string, hook **snapshot.Hook) {
		if name == string(at) {
			found = *hook
		}
	})
	return found
}

// Run runs a hook in the guest of a running sandbox with the given record. It returns nil if the
// sandbox has no such hook, or if the hook fails but does not abort the operation. If a failed hook
// aborts the operation, the error is an *Error. Run returns at the latest when the hook's time
// limit has passed or ctx has ended, whatever the guest does.
func (r *Runner) Run(ctx context.Context, dial agentclient.DialFunc, of *ledger.Record, at Point) error {
	h := Of(of.Hooks, at)
	if h == nil {
		return nil
	}
	err := run(ctx, dial, h, at)
	if err == nil {
		return nil
	}
	r.Log.Debug("a hook failed", "sandbox", of.ID, "hook", string(at), "policy", h.OnFailure, "error", err)
	if h.OnFailure != snapshot.HookContinues {
		return &Error{ID: of.ID, Point: at, Err: err}
	}
	// Clients that may not see the contents of sandboxes receive events, so an event has neither
	// arguments nor output.
	r.Events.Emit(event.Event{Kind: event.SandboxHook, Owner: of.Owner, Sandbox: of.ID, Snapshot: of.Tag(),
		Labels: of.Labels, Reason: string(at), Detail: errors.Unwrap(err).Error()})
	return nil
}

// failedError is the failure of a command.
type failedError struct {
	args   []string
	err    error
	output string // the end of the command's output
}

func (e *failedError) Error() string {
	return fmt.Sprintf("%.200q: %v%s", strings.Join(e.args, " "), e.err, e.output)
}

func (e *failedError) Unwrap() error { return e.err }

// run runs a command in a goroutine. Its errors are of type *failedError. The goroutine may outlive
// the call by a few seconds, because killing the command needs an answer of the guest, which may
// not come.
func run(ctx context.Context, dial agentclient.DialFunc, h *snapshot.Hook, at Point) error {
	limit := time.Duration(h.TimeoutSecs) * time.Second
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out output
	done := make(chan error, 1)
	go func() {
		res, err := agentclient.New(dial).ExecStream(wait, agentclient.ExecRequest{Args: h.Args, Timeout: limit,
			Env: map[string]string{nameEnv: string(at)}}, out.add)
		switch {
		case err == nil && res.Outcome == agentclient.TimedOut: // the guest noticed the time limit first
			err = errLate
		case err == nil:
			err = failure(res)
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
		if err == nil {
			return nil
		}
		if agentclient.IsBrokenOff(err) { // perhaps because the VM ends; if so, ctx ends a little later
			select {
			case <-wait.Done():
			case <-time.After(exitDelay):
			}
		}
	case <-wait.Done():
	}
	switch {
	case ctx.Err() != nil:
		err = vmpool.Cause(ctx, ctx.Err())
	case wait.Err() != nil, errors.Is(err, errLate):
		err = fmt.Errorf("not done after %v", limit)
	}
	return &failedError{h.Args, err, out.quote()}
}

// exitDelay is how long a VMM may take to exit after its connections are closed.
const exitDelay = 2 * time.Second

var errLate = errors.New("the time limit has passed")

// failure returns the error of a command that has ended, or nil if the command exited with 0.
func failure(r agentclient.ExecResult) error {
	switch {
	case r.Outcome == agentclient.Exited && r.ExitCode == 0:
		return nil
	case r.Outcome == agentclient.NotFound: // the status has the name of the program, which is an argument
		return agentclient.ErrCommandNotFound
	case r.Outcome == agentclient.NotExecutable:
		return agentclient.ErrNotExecutable
	}
	return fmt.Errorf("%.200s", strings.ToValidUTF8(r.Status, "\uFFFD"))
}

var errFlood = errors.New("killed: it wrote more than 1 MiB of output")

// output keeps the end of what a command writes.
type output struct {
	mu sync.Mutex
	// +checklocks:mu
	end []byte
	// +checklocks:mu
	total int
}

func (o *output) add(_ agentclient.Stream, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.total += len(p); o.total > maxOutput {
		return errFlood
	}
	o.end = append(o.end, p[max(0, len(p)-maxQuote):]...)
	o.end = append([]byte(nil), o.end[max(0, len(o.end)-maxQuote):]...)
	return nil
}

// quote returns the end of the output in the form that ends an error message.
func (o *output) quote() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := excerpt.Lines(o.end, quotedLines)
	if text == "" {
		return ""
	}
	return "; its output ends with:\n" + text
}
