package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"
)

// ConnectionError says that no daemon answered.
type ConnectionError struct {
	Address string // where the client looked for the daemon
	Sent    bool   // whether the request was sent; the daemon may then have carried it out
	Err     error
}

func (e *ConnectionError) Error() string {
	what := "nothing was sent"
	if e.Sent {
		what = "the request may have been carried out"
	}
	return fmt.Sprintf("no answer of a forkd daemon at %s (%s): %v", e.Address, what, e.Err)
}

func (e *ConnectionError) Unwrap() error { return e.Err }

// StreamError says that a stream was cut off because the connection to the daemon broke.
type StreamError struct {
	What string // kind of stream, such as "exec"
	PID  uint32 // process of the command, which may still run; 0 if the stream has no process, or its id is unknown
	Err  error
}

func (e *StreamError) Error() string {
	return fmt.Sprintf("%s: the stream broke off before its end: %v", e.What, e.Err)
}

func (e *StreamError) Unwrap() error { return e.Err }

// broken converts err, which occurred while a stream was read, to a *StreamError. If ctx has ended,
// broken returns the error of ctx instead.
func broken(ctx context.Context, what string, pid uint32, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &StreamError{What: what, PID: pid, Err: err}
}

// PartialForkError says that some children of a fork did not start. The other children are running
// and belong to the caller.
type PartialForkError struct {
	Sandboxes []Sandbox
	Failed    int
}

func (e *PartialForkError) Error() string {
	return fmt.Sprintf("%d of %d children did not start; the others live", e.Failed, e.Failed+len(e.Sandboxes))
}

// Children returns the sandboxes of a fork, and a *PartialForkError if some children did not start:
//
//	kids, err := client.Children(c.Fork(ctx, req))
func Children(f Forked, err error) ([]Sandbox, error) {
	if err == nil && f.Failed > 0 {
		err = &PartialForkError{Sandboxes: f.Sandboxes, Failed: f.Failed}
	}
	return f.Sandboxes, err
}

// CommandError says that a command did not succeed.
type CommandError struct{ ExecResult }

func (e *CommandError) Error() string {
	why := e.ExecResult.Error
	if why == "" {
		why = fmt.Sprintf("exit code %d", e.ExitCode)
	}
	if e.Stderr != "" {
		why += ": " + e.Stderr[:min(len(e.Stderr), 200)]
	}
	return "the command failed: " + why
}

// Checked returns a *CommandError if a command did not exit with 0:
//
//	r, err := client.Checked(c.Exec(ctx, id, req))
func Checked(r ExecResult, err error) (ExecResult, error) {
	if err == nil && (r.ExitCode != 0 || r.Error != "") {
		err = &CommandError{r}
	}
	return r, err
}

// Shell returns the arguments that run a command line with /bin/sh.
func Shell(line string) []string { return []string{"/bin/sh", "-c", line} }

// WithRetries makes a client repeat a call if the connection fails or the daemon says when to try
// again. The client repeats a call up to n times, until the call's context ends. It repeats only
// calls that are safe to repeat. These are calls that read, and calls that make a sandbox, a
// snapshot, a workspace or a context. Calls that make something carry an Idempotency-Key, by which
// the daemon recognizes a repeated request. By default no call is repeated.
func WithRetries(n int) Option {
	return func(s *settings) error {
		if n < 0 {
			return wrong("retries", "%d: want 0 or more", n)
		}
		s.retries = n
		return nil
	}
}

const onceHeader = "Idempotency-Key"

// firstPause is the time before a request is repeated for the first time, if the daemon sends no
// Retry-After. Each further pause is twice as long as the previous pause.
const firstPause = 100 * time.Millisecond

// repeat sends a request until it receives a final answer. Each attempt sends the same body.
func (c *Client) repeat(ctx context.Context, method string, header http.Header, once bool,
	send func(http.Header) (*http.Response, error)) (*http.Response, error) {
	left := c.retries
	switch {
	case left > 0 && once:
		header.Set(onceHeader, rand.Text())
	case method != http.MethodGet:
		left = 0
	}
	for pause := firstPause; ; pause *= 2 {
		resp, err := send(header.Clone())
		wait, again := pauseAfter(err, pause)
		if !again || left == 0 {
			return resp, err
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < wait {
			return nil, err
		}
		left--
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// pauseAfter reports whether the same request may succeed later, and returns how long to wait.
func pauseAfter(err error, pause time.Duration) (wait time.Duration, again bool) {
	var answer *Error
	if errors.As(err, &answer) {
		busy := answer.Status == http.StatusTooManyRequests || answer.Status == http.StatusServiceUnavailable
		return answer.RetryAfter, busy && answer.RetryAfter > 0
	}
	return pause, errors.As(err, new(*ConnectionError))
}

// traced returns a context and a flag that is set when a request with this context has obtained a
// connection.
func traced(ctx context.Context) (with context.Context, sent *atomic.Bool) {
	sent = &atomic.Bool{}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	}), sent
}

// canRepeat reports whether the daemon uses the Idempotency-Key of a request with this method and
// path to recognize that the request is repeated.
func canRepeat(method, path string) bool {
	switch path {
	case "/v1/forks", "/v1/snapshots", "/v1/workspaces", "/v1/sandboxes":
		return method == http.MethodPost
	}
	rest, ofSandbox := strings.CutPrefix(path, "/v1/sandboxes/")
	_, what, _ := strings.Cut(rest, "/")
	return method == http.MethodPost && ofSandbox && (what == "branch" || what == "contexts")
}
