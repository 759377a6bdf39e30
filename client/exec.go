package client

import (
	"context"
	"net/http"
)

// Pong is the answer of a sandbox's agent.
type Pong struct {
	Pong        bool     `json:"pong"`
	WarmupReady bool     `json:"warmup_ready"`
	Kernel      string   `json:"kernel"`
	Warm        []string `json:"warm"` // languages with a warm interpreter
	Errors      []string `json:"errors,omitempty"`
}

// Ping asks a sandbox's agent for an answer.
func (c *Client) Ping(ctx context.Context, id string) (p Pong, err error) {
	_, err = c.call(ctx, http.MethodPost, sandboxPath(id, "/ping"), nil, &p)
	return p, err
}

// ExecRequest is a command to run in a sandbox; no shell is involved.
type ExecRequest struct {
	Args        []string          `json:"args"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty"` // 0: 30
	Env         map[string]string `json:"env,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	User        string            `json:"user,omitempty"`
}

// ExecResult is the end of a command. Outcome is "exited", "signaled", "timeout", "not_found" or "not_executable";
// ExitCode is the command's own, or 137, 124, 127 and 126 in the order of the others.
type ExecResult struct {
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	ExitCode        int    `json:"exit_code"`
	Outcome         string `json:"outcome"`
	Status          string `json:"status,omitempty"`
	Error           string `json:"error,omitempty"` // set unless it exited by itself with its output whole
	TimedOut        bool   `json:"timed_out"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	StderrTruncated bool   `json:"stderr_truncated"`
}

// Exec runs a command in a sandbox and waits for its end.
func (c *Client) Exec(ctx context.Context, id string, req ExecRequest) (r ExecResult, err error) {
	_, err = c.call(ctx, http.MethodPost, sandboxPath(id, "/exec"), req, &r)
	return r, err
}

// EvalRequest is code for a warm interpreter of a sandbox.
type EvalRequest struct {
	Code        string            `json:"code"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty"` // 0: 30
	Language    string            `json:"language,omitempty"`     // empty: python
	ContextID   string            `json:"context_id,omitempty"`   // empty: the language's default context
	Env         map[string]string `json:"env,omitempty"`
}

// EvalResult is the end of an evaluation. Result is nil if the last statement has no value.
type EvalResult struct {
	Result    *string `json:"result,omitempty"`
	Error     string  `json:"error,omitempty"`
	Traceback string  `json:"traceback,omitempty"`
	Stdout    string  `json:"stdout"`
	Stderr    string  `json:"stderr"`
	ExitCode  int     `json:"exit_code"` // 0, 1 after an exception, 124 after a timeout
	TimedOut  bool    `json:"timed_out"`
	Truncated bool    `json:"truncated"`
}

// Eval runs code in a warm interpreter of a sandbox.
func (c *Client) Eval(ctx context.Context, id string, req EvalRequest) (r EvalResult, err error) {
	_, err = c.call(ctx, http.MethodPost, sandboxPath(id, "/eval"), req, &r)
	return r, err
}
