package v1

// Pong is the response of a sandbox's agent.
type Pong struct {
	Pong        bool     `json:"pong"`
	WarmupReady bool     `json:"warmup_ready"`
	Kernel      string   `json:"kernel"`
	Warm        []string `json:"warm"` // languages with a warm interpreter
	Errors      []string `json:"errors,omitempty"`
}

// ExecRequest is a command to run in a sandbox, without a shell.
type ExecRequest struct {
	Args        []string          `json:"args"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty"` // seconds; 0 means 30
	Env         map[string]string `json:"env,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	User        string            `json:"user,omitempty"`
	Stdin       []byte            `json:"stdin,omitempty"` // base64 in JSON, at most 8 MiB; not over a WebSocket
	TTY         *TTYSize          `json:"tty,omitempty"`   // run the command in a terminal; all output is stdout

	// OpenStdin keeps the command's input open for later data. A terminal's input always stays
	// open. With Detach, the response is ExecStarted as soon as the command runs, and the command
	// continues without a client.
	OpenStdin bool `json:"open_stdin,omitempty"`
	Detach    bool `json:"detach,omitempty"`
}

// TTYSize is the size of a terminal in characters. If a dimension is missing, the size is 80 by 24.
type TTYSize struct {
	Cols uint `json:"cols,omitempty"`
	Rows uint `json:"rows,omitempty"`
}

// ExecStarted means that a command is running.
type ExecStarted struct {
	PID uint32 `json:"pid"` // process id in the sandbox
}

// Process is a running process that an exec has started in a sandbox.
type Process struct {
	PID  uint32   `json:"pid"`
	Args []string `json:"args"`
	Cwd  string   `json:"cwd,omitempty"` // working directory, as in the request
}

// SignalRequest names a signal, such as "SIGTERM" or "TERM".
type SignalRequest struct {
	Signal string `json:"signal"`
}

// ExecEnd describes how a command ended. The field Outcome is "exited", "signaled", "timeout",
// "not_found" or "not_executable". If the command exited, ExitCode is the command's own exit code.
// If it did not exit, ExitCode is the code that a shell would report: 128 plus the number of the
// signal, 124 after a timeout, 127 for "not_found" and 126 for "not_executable".
type ExecEnd struct {
	ExitCode int    `json:"exit_code"`
	Outcome  string `json:"outcome"`
	Signal   string `json:"signal,omitempty"` // signal that killed the command, such as "SIGKILL"
	Status   string `json:"status,omitempty"`
	Error    string `json:"error,omitempty"` // empty only if the command exited by itself with complete output
	TimedOut bool   `json:"timed_out"`
}

// ExecResult is the end of a command, with the first 8 MiB of each of its outputs.
type ExecResult struct {
	ExecEnd
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	StderrTruncated bool   `json:"stderr_truncated"`

	// StdoutBytes and StderrBytes are set instead of the text fields if the output is not UTF-8
	// (JSON strings cannot carry it unchanged), or if it is large and full of control characters.
	StdoutBytes []byte `json:"stdout_base64,omitempty"`
	StderrBytes []byte `json:"stderr_base64,omitempty"`
}

// NDJSON is the media type of a stream of messages, one per line. If a request for an exec accepts
// NDJSON, the response is a stream of ExecEvents.
const NDJSON = "application/x-ndjson"

// ExecEvent is one message of the stream of a command: its start, a part of its output, or its end.
// The last message is the end, or an error if the end is unknown.
type ExecEvent struct {
	Started *ExecStarted `json:"started,omitempty"`

	// These fields hold output, and are set only in NDJSON. Over a WebSocket, output is sent in
	// binary messages. The output is sent as text if it is UTF-8 without NUL bytes and with few
	// control characters, and as bytes if it is not.
	Stdout      string `json:"stdout,omitempty"`
	Stderr      string `json:"stderr,omitempty"`
	StdoutBytes []byte `json:"stdout_base64,omitempty"`
	StderrBytes []byte `json:"stderr_base64,omitempty"`

	// These fields are used only over a WebSocket. StdinTaken is the number of input bytes that the
	// process has read so far. StdinClosed is true if the process has closed its input. Keepalive
	// is sent when there is no other message.
	StdinTaken  int64 `json:"stdin_taken,omitempty"`
	StdinClosed bool  `json:"stdin_closed,omitempty"`
	Keepalive   bool  `json:"keepalive,omitempty"`

	Detached bool `json:"detached,omitempty"` // the last message: the process continues

	End    *ExecEnd `json:"end,omitempty"`
	Error  string   `json:"error,omitempty"`
	Status int      `json:"status,omitempty"` // with Error: the HTTP status for the same problem
	Code   string   `json:"code,omitempty"`
}

// The first byte of a binary WebSocket message to the client says which output of the process the
// other bytes belong to.
const (
	SocketStdout = 1
	SocketStderr = 2
)

// ExecInput is a text message of a WebSocket from the client. The first message of an exec has
// Start and no other field; every later message has one field. Binary messages are input for the
// process.
type ExecInput struct {
	Start      *ExecRequest `json:"start,omitempty"`
	Resize     *TTYSize     `json:"resize,omitempty"`
	Signal     string       `json:"signal,omitempty"`
	CloseStdin bool         `json:"close_stdin,omitempty"`
	Detach     bool         `json:"detach,omitempty"` // end the stream; the process continues
}

// EvalRequest is code for a warm interpreter of a sandbox.
type EvalRequest struct {
	Code        string            `json:"code"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty"` // seconds; 0 means 30
	Language    string            `json:"language,omitempty"`     // empty: python
	ContextID   string            `json:"context_id,omitempty"`   // empty: the language's default context
	Env         map[string]string `json:"env,omitempty"`
}

// EvalResult is the result of an evaluation. The field Result is nil if the last statement has no
// value.
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

// InterpreterRequest names an interpreter of a sandbox to interrupt or restart.
type InterpreterRequest struct {
	ContextID string `json:"context_id,omitempty"` // empty: the default context of Python
}

// Interrupted reports whether there was code to interrupt. The code may catch the interrupt and
// continue.
type Interrupted struct {
	Interrupted bool `json:"interrupted"`
}

// Restarted means that the interpreter was restarted and has lost its variables.
type Restarted struct {
	Restarted bool `json:"restarted"`
}
