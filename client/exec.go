package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	v1 "github.com/forkd/forkd/api/v1"
)

// Ping asks a sandbox's agent for an answer.
func (c *Client) Ping(ctx context.Context, id string) (p Pong, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/ping"), nil, &p)
	return p, err
}

// Bounds of Exec, in bytes: maxOutput for the part of each output that Exec returns, and maxTotal
// for all output that it reads.
const (
	maxOutput = 8 << 20
	maxTotal  = 64 << 20
)

// Exec runs a command in a sandbox, waits until it exits and returns the first 8 MiB of each
// output, byte for byte. A command that writes more than 64 MiB is killed.
func (c *Client) Exec(ctx context.Context, id string, req ExecRequest) (ExecResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	total := 0
	stdout, stderr := capped{total: &total}, capped{total: &total}
	end, err := c.ExecStream(ctx, id, req, &stdout, &stderr)
	if errors.Is(err, errTotal) { // closing the stream kills the command
		end = ExecEnd{Outcome: "signaled", ExitCode: 137, Signal: "SIGKILL"}
		end.Error, err = fmt.Sprintf("killed after %d bytes of output", total), nil
	}
	r := ExecResult{ExecEnd: end, Stdout: stdout.buf.String(), Stderr: stderr.buf.String(),
		StdoutTruncated: stdout.truncated, StderrTruncated: stderr.truncated}
	if r.Error == "" && (r.StdoutTruncated || r.StderrTruncated) {
		r.Error = "output truncated"
	}
	return r, err
}

// maxExecEvent bounds an event of a command, in bytes. The daemon sends output in much shorter parts.
const maxExecEvent = 16 << 20

var errTotal = errors.New("too much output")

// capped keeps the first maxOutput bytes that are written to it.
type capped struct {
	buf       bytes.Buffer
	truncated bool
	total     *int
}

func (c *capped) Write(p []byte) (int, error) {
	n := len(p)
	if room := maxOutput - c.buf.Len(); n > room {
		p, c.truncated = p[:room], true
	}
	c.buf.Write(p)
	if *c.total += n; *c.total > maxTotal {
		return n, errTotal
	}
	return n, nil
}

// ExecStream runs a command in a sandbox and writes its output as it arrives, byte for byte and
// without a limit. The command is killed if ctx ends or a write fails. The error is ErrDetached if
// DetachProcess was called.
func (c *Client) ExecStream(ctx context.Context, id string, req ExecRequest, stdout, stderr io.Writer) (end ExecEnd,
	err error) {
	if err := checkExec(req); err != nil {
		return end, err
	}
	p, err := json.Marshal(req)
	if err != nil {
		return end, err
	}
	resp, err := c.send(ctx, http.MethodPost, sandboxPath(id, "/exec"), bytes.NewReader(p), http.Header{
		"Content-Type": {"application/json"}, "Accept": {v1.NDJSON},
	})
	if err != nil {
		return end, err
	}
	defer resp.Body.Close()
	var pid uint32
	for events := eventsOf(resp.Body, maxExecEvent); ; {
		var e v1.ExecEvent
		if err := events.next(&e); err != nil {
			return end, broken(ctx, "exec", pid, err)
		}
		switch {
		case e.Started != nil:
			pid = e.Started.PID
		case e.End != nil:
			return *e.End, nil
		case e.Detached:
			return end, ErrDetached
		case e.Error != "":
			return end, &Error{Status: e.Status, Message: e.Error, Code: e.Code}
		}
		if err := writeParts(stdout, e.Stdout, e.StdoutBytes); err != nil {
			return end, err
		}
		if err := writeParts(stderr, e.Stderr, e.StderrBytes); err != nil {
			return end, err
		}
	}
}

// writeParts writes output that a message holds as text or as bytes.
func writeParts(to io.Writer, text string, bytes []byte) error {
	if text != "" {
		bytes = []byte(text)
	}
	if len(bytes) == 0 {
		return nil
	}
	_, err := to.Write(bytes)
	return err
}

// Eval runs code in a warm interpreter of a sandbox.
func (c *Client) Eval(ctx context.Context, id string, req EvalRequest) (r EvalResult, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/eval"), req, &r)
	return r, err
}

// InterruptEval interrupts the code that runs in an interpreter of a sandbox and reports whether
// any code was running. An empty contextID means the default interpreter. Code may catch the
// interrupt and continue. Only RestartEval stops all code.
func (c *Client) InterruptEval(ctx context.Context, id, contextID string) (bool, error) {
	var answer v1.Interrupted
	err := c.call(ctx, http.MethodPost, sandboxPath(id, "/eval/interrupt"), v1.InterpreterRequest{ContextID: contextID},
		&answer)
	return answer.Interrupted, err
}

// RestartEval replaces an interpreter of a sandbox. An empty contextID means the default
// interpreter. Code that is running in the interpreter ends, and the variables of the interpreter
// are lost.
func (c *Client) RestartEval(ctx context.Context, id, contextID string) error {
	return c.call(ctx, http.MethodPost, sandboxPath(id, "/eval/restart"), v1.InterpreterRequest{ContextID: contextID}, nil)
}
