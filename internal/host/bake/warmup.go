package bake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// maxWarmupOutput is how many bytes of the warm-up's output are kept.
const maxWarmupOutput = 64 << 10

// quotedLines is how many lines of a failed step's output are in its error.
const quotedLines = 10

// WarmupError reports a warm-up step that failed in the guest. The step is at fault, not the
// daemon.
type WarmupError struct {
	What   string // the command, or "python"
	Reason string // how the step ended
	Output string // last lines of the step's output
}

func (e *WarmupError) Error() string {
	msg := fmt.Sprintf("%s: %s", e.What, e.Reason)
	if e.Output != "" {
		msg += "; its output ends with:\n" + e.Output
	}
	return msg
}

// lateAnswer is how long a step may continue after its own timeout. Without this limit, a guest
// that never reports the end of a step would keep the only place for bakes.
const lateAnswer = 30 * time.Second

// within adds a deadline to a call of f, because f waits for the guest.
func within(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest did not answer within %v", limit))
	defer cancel()
	return vmpool.Cause(ctx, f(ctx))
}

// ErrFull is the error of a bake, or of a step of a build, that has ended because the host's disk
// is full. A guest that finds no space for its writes is paused until there is space. A bake does
// not wait for space, because a waiting bake would keep the only place for bakes until its timeout.
var ErrFull = fmt.Errorf("the host's disk is full: the guest writes more than there is room for under the daemon's state: %w", syscall.ENOSPC)

// warm runs the warm-up steps.
func (b *bake) warm(ctx context.Context) error {
	for i, command := range b.req.Commands {
		b.begin(fmt.Sprintf("run warm-up command %d", i+1))
		if err := b.runCommand(ctx, command); err != nil {
			return err
		}
	}
	if b.req.Python == "" {
		return nil
	}
	b.begin("run the warm-up code")
	return b.runPython(ctx)
}

func (b *bake) runCommand(ctx context.Context, command string) error {
	var r agentclient.ExecResult
	err := within(ctx, b.req.Warmup+lateAnswer, func(ctx context.Context) (err error) {
		r, err = b.guest.Exec(ctx, agentclient.ExecRequest{
			Args: []string{"/bin/sh", "-c", command}, Timeout: b.req.Warmup, MaxOutput: maxWarmupOutput,
		})
		return err
	})
	if err != nil {
		return err
	}
	output := string(r.Stdout) + string(r.Stderr)
	b.keep(output)
	failed := &WarmupError{What: fmt.Sprintf("%q", command), Output: excerpt.Lines([]byte(output), quotedLines)}
	switch err := r.Err(); {
	case errors.Is(err, agentclient.ErrTimeout):
		failed.Reason = fmt.Sprintf("not done after %v; raise warmup_timeout_secs", b.req.Warmup)
	case err != nil && !errors.Is(err, agentclient.ErrOutputTruncated):
		failed.Reason = err.Error()
	case r.ExitCode != 0:
		failed.Reason = fmt.Sprintf("exit code %d", r.ExitCode)
	default:
		return nil
	}
	return failed
}

func (b *bake) runPython(ctx context.Context) error {
	var r agentclient.EvalResult
	err := within(ctx, b.req.Warmup+lateAnswer, func(ctx context.Context) (err error) {
		r, err = b.guest.Eval(ctx, b.req.Python, agentclient.EvalOptions{Timeout: b.req.Warmup, MaxOutput: maxWarmupOutput})
		return err
	})
	if err != nil {
		return err
	}
	output := string(r.Stdout) + string(r.Stderr)
	b.keep(output)
	if r.Error != nil {
		return &WarmupError{What: "python", Reason: r.Error.Error(), Output: r.Error.Traceback}
	}
	if err := r.Err(); err != nil && !errors.Is(err, agentclient.ErrOutputTruncated) {
		return &WarmupError{What: "python", Reason: err.Error(), Output: excerpt.Lines([]byte(output), quotedLines)}
	}
	return nil
}

// keep appends a part of the warm-up's output to the result, which holds only the last
// maxWarmupOutput bytes of the output.
func (b *bake) keep(output string) {
	all := strings.ToValidUTF8(b.result.Output+output, "?")
	b.result.Output = all[max(0, len(all)-maxWarmupOutput):]
}
