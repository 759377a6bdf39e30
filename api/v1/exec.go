package v1

// Pong is the answer of a sandbox's agent.
type Pong struct {
	Pong        bool     `json:"pong"`
	WarmupReady bool     `json:"warmup_ready"`
	Kernel      string   `json:"kernel"`
	Warm        []string `json:"warm"` // languages with a warm interpreter
	Errors      []string `json:"errors,omitempty"`
}

// ExecRequest is a command to run in a sandbox; no shell is involved.
type ExecRequest struct {
	Args        []string          `json:"args"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty"` // 0: 30
	Env         map[string]string `json:"env,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	User        string            `json:"user,omitempty"`
	Stdin       []byte            `json:"stdin,omitempty"` // base64 in JSON, at most 8 MiB; not over a WebSocket
	TTY         *TTYSize          `json:"tty,omitempty"`   // a terminal for the command: its output is all stdout

	// OpenStdin keeps the command's input open for what is sent to the process; a terminal's always
	// is. Detach is answered with ExecStarted as soon as the command runs; it goes on by itself.
	OpenStdin bool `json:"open_stdin,omitempty"`
	Detach    bool `json:"detach,omitempty"`
}

// TTYSize is the size of a terminal in characters. One without columns or rows is 80 by 24.
type TTYSize struct {
	Cols uint `json:"cols,omitempty"`
	Rows uint `json:"rows,omitempty"`
}

// ExecStarted says that a command runs.
type ExecStarted struct {
	PID uint32 `json:"pid"` // in the sandbox
}

// Process is a running process of a sandbox that was started by an exec.
type Process struct {
	PID  uint32   `json:"pid"`
	Args []string `json:"args"`
	Cwd  string   `json:"cwd,omitempty"` // as it was asked for
}

// SignalRequest names a signal, such as "SIGTERM" or "TERM".
type SignalRequest struct {
	Signal string `json:"signal"`
}

// ExecEnd says how a command ended. Outcome is "exited", "signaled", "timeout", "not_found" or
// "not_executable"; ExitCode is the command's own, or what a shell would report: 128 and the number
// of the signal, 124, 127 and 126 in the order of the others.
type ExecEnd struct {
	ExitCode int    `json:"exit_code"`
	Outcome  string `json:"outcome"`
	Signal   string `json:"signal,omitempty"` // that ended it, such as "SIGKILL"
	Status   string `json:"status,omitempty"`
	Error    string `json:"error,omitempty"` // set unless it exited by itself with its output whole
	TimedOut bool   `json:"timed_out"`
}

// ExecResult is the end of a command and the first 8 MiB of each of its outputs.
type ExecResult struct {
	ExecEnd
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	StderrTruncated bool   `json:"stderr_truncated"`

	// StdoutBytes and StderrBytes are set where the output is not UTF-8, which text in JSON would
	// not carry unharmed, or large and full of control characters, which are then not in the text.
	StdoutBytes []byte `json:"stdout_base64,omitempty"`
	StderrBytes []byte `json:"stderr_base64,omitempty"`
}

// NDJSON is the media type of a stream of messages, one per line. An exec that accepts it is
// answered with ExecEvents.
const NDJSON = "application/x-ndjson"

// ExecEvent is one message of the stream of a command: that it runs, a part of its output, or the
// last: how it ended, or the error on account of which nobody knows.
type ExecEvent struct {
	Started *ExecStarted `json:"started,omitempty"`

	// Output, in lines of JSON only: over a WebSocket it comes in binary messages. It is text where
	// it is UTF-8 without NUL bytes and with few control characters, and bytes otherwise.
	Stdout      string `json:"stdout,omitempty"`
	Stderr      string `json:"stderr,omitempty"`
	StdoutBytes []byte `json:"stdout_base64,omitempty"`
	StderrBytes []byte `json:"stderr_base64,omitempty"`

	// Over a WebSocket only: the bytes of input that the process has taken so far, that it takes no
	// more, and that the connection lives.
	StdinTaken  int64 `json:"stdin_taken,omitempty"`
	StdinClosed bool  `json:"stdin_closed,omitempty"`
	Keepalive   bool  `json:"keepalive,omitempty"`

	Detached bool `json:"detached,omitempty"` // the last: the process goes on

	End    *ExecEnd `json:"end,omitempty"`
	Error  string   `json:"error,omitempty"`
	Status int      `json:"status,omitempty"` // with Error: what the same problem as an answer has
	Code   string   `json:"code,omitempty"`
}

// The first byte of a binary message of a WebSocket to the client: what the rest is.
const (
	SocketStdout = 1
	SocketStderr = 2
)

// ExecInput is a text message of a WebSocket from the client. The first one of an exec has Start,
// and nothing else; the others have one field each. Binary messages are input for the process.
type ExecInput struct {
	Start      *ExecRequest `json:"start,omitempty"`
	Resize     *TTYSize     `json:"resize,omitempty"`
	Signal     string       `json:"signal,omitempty"`
	CloseStdin bool         `json:"close_stdin,omitempty"`
	Detach     bool         `json:"detach,omitempty"` // let the process go on, and end the stream
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

// InterpreterRequest names an interpreter of a sandbox that is to be interrupted or restarted.
type InterpreterRequest struct {
	ContextID string `json:"context_id,omitempty"` // empty: the default one of Python
}

// Interrupted says whether there was code to interrupt. It may catch the interrupt and go on.
type Interrupted struct {
	Interrupted bool `json:"interrupted"`
}

// Restarted says that an interpreter is a new one, without the variables of the old.
type Restarted struct {
	Restarted bool `json:"restarted"`
}
