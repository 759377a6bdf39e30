package v1

import (
	"context"
	"net/http"

	"github.com/forkd/forkd/internal/agentclient"
)

func (a *api) ping(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), maxPingDelay)
	defer cancel()
	ready, err := a.Manager.Ping(ctx, r.PathValue("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Pong   bool     `json:"pong"`
		Warm   bool     `json:"warmup_ready"`
		Kernel string   `json:"kernel"`
		Langs  []string `json:"warm"`
		Errors []string `json:"errors,omitempty"`
	}{true, true, ready.Kernel, append([]string{}, ready.Warm...), ready.Errors})
}

type execRequest struct {
	Args    []string          `json:"args"`
	Timeout float64           `json:"timeout_secs"`
	Env     map[string]string `json:"env"`
	Cwd     string            `json:"cwd"`
	User    string            `json:"user"`
}

// execAnswer: Outcome tells the ways to end apart. ExitCode follows the shell's conventions where there is none of the
// command's own: 124 timed out (timeout(1)), 126 not executable, 127 not found, 137 killed.
type execAnswer struct {
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	ExitCode        int    `json:"exit_code"`
	Outcome         string `json:"outcome"`
	Status          string `json:"status,omitempty"`
	Error           string `json:"error,omitempty"`
	TimedOut        bool   `json:"timed_out"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	StderrTruncated bool   `json:"stderr_truncated"`
}

// exitCodeOf is what a shell would report.
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
	return 137
}

func (a *api) exec(w http.ResponseWriter, r *http.Request) error {
	var req execRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	if len(req.Args) == 0 || req.Args[0] == "" || len(req.Args) > maxArgs {
		return badRequest("args: %d arguments: want a command and at most %d arguments", len(req.Args), maxArgs)
	}
	timeout, err := seconds("timeout_secs", req.Timeout, defaultExec, maxExec)
	if err != nil {
		return err
	}
	res, err := a.Manager.Exec(r.Context(), r.PathValue("id"), agentclient.ExecRequest{
		Args: req.Args, Env: req.Env, Cwd: req.Cwd, User: req.User, Timeout: timeout, MaxOutput: maxOutput,
	})
	if err != nil {
		return err
	}
	answer := execAnswer{
		Stdout: string(res.Stdout), Stderr: string(res.Stderr), ExitCode: exitCodeOf(res), Outcome: string(res.Outcome),
		Status: res.Status, TimedOut: res.Outcome == agentclient.TimedOut,
		StdoutTruncated: res.StdoutTruncated, StderrTruncated: res.StderrTruncated,
	}
	if err := res.Err(); err != nil {
		answer.Error = err.Error()
	}
	return writeJSON(w, http.StatusOK, answer)
}

type evalRequest struct {
	Code      string            `json:"code"`
	Timeout   float64           `json:"timeout_secs"`
	Language  string            `json:"language"`
	ContextID string            `json:"context_id"`
	Env       map[string]string `json:"env"`
}

// evalAnswer: Result is the repr of the last expression and absent if there is none. ExitCode is 0 or 1, as forkd 0.5
// has it, and 124 after a timeout.
type evalAnswer struct {
	Result    *string `json:"result,omitempty"`
	Error     string  `json:"error,omitempty"`
	Traceback string  `json:"traceback,omitempty"`
	Stdout    string  `json:"stdout"`
	Stderr    string  `json:"stderr"`
	ExitCode  int     `json:"exit_code"`
	TimedOut  bool    `json:"timed_out"`
	Truncated bool    `json:"truncated"`
}

func (a *api) eval(w http.ResponseWriter, r *http.Request) error {
	var req evalRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	if req.Language != "" && req.ContextID != "" {
		return badRequest("language and context_id exclude each other: a context has its language")
	}
	timeout, err := seconds("timeout_secs", req.Timeout, defaultExec, maxExec)
	if err != nil {
		return err
	}
	res, err := a.Manager.Eval(r.Context(), r.PathValue("id"), req.Code, agentclient.EvalOptions{
		ContextID: req.ContextID, Language: req.Language, Env: req.Env, Timeout: timeout, MaxOutput: maxOutput,
	})
	if err != nil {
		return err
	}
	answer := evalAnswer{
		Result: res.Result, Stdout: string(res.Stdout), Stderr: string(res.Stderr),
		TimedOut: res.TimedOut, Truncated: res.Truncated,
	}
	switch {
	case res.TimedOut:
		answer.Error, answer.ExitCode = "timed out after "+timeout.String(), 124
	case res.Error != nil:
		answer.Error, answer.Traceback, answer.ExitCode = res.Error.Error(), res.Error.Traceback, 1
	case res.Truncated:
		answer.Error = agentclient.ErrOutputTruncated.Error()
	}
	return writeJSON(w, http.StatusOK, answer)
}
