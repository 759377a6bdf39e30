package v1

import "encoding/json"

// CodeRequest is code to run in an interpreter of a sandbox.
type CodeRequest struct {
	Code        string            `json:"code"`
	Language    string            `json:"language,omitempty"`     // empty: python
	ContextID   string            `json:"context_id,omitempty"`   // empty: the language's default context
	TimeoutSecs float64           `json:"timeout_secs,omitempty"` // seconds; 0 means 30
	Env         map[string]string `json:"env,omitempty"`          // environment variables for this call only
	Repr        bool              `json:"repr,omitempty"`         // keep the quotes of a string result
}

// CodeEvent is one message of the stream of a code execution. The first message has Started, and
// the last message has End or Error.
type CodeEvent struct {
	Started   *CodeStarted   `json:"started,omitempty"`
	Stdout    string         `json:"stdout,omitempty"`
	Stderr    string         `json:"stderr,omitempty"`
	Result    *CodeResult    `json:"result,omitempty"`
	Exception *CodeException `json:"exception,omitempty"`
	Keepalive bool           `json:"keepalive,omitempty"` // sent when there is no other message
	End       *CodeEnd       `json:"end,omitempty"`

	Error  string `json:"error,omitempty"`  // reason why the outcome is unknown
	Status int    `json:"status,omitempty"` // with Error: the HTTP status for the same problem
	Code   string `json:"code,omitempty"`   // with Error: the code of the problem, as in Error.Code
}

// CodeStarted means that code is running.
type CodeStarted struct {
	ExecutionCount int `json:"execution_count"` // counted by the interpreter, from 1
}

// CodeResult is a value that the code displayed, in one or more formats: text; base64 for binary
// media types; or JSON for application/json, e2b/data (the columns of a data frame) and e2b/chart
// (the content of a figure).
type CodeResult struct {
	Main bool                       `json:"main"` // true for the value of the last expression, false for display()
	Data map[string]json.RawMessage `json:"data"` // forms of the value, by media type
}

// CodeException is an uncaught exception.
type CodeException struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// CodeEnd describes how the code ended. The field Outcome is "finished", "exception", "timeout", or
// "died" if the interpreter died.
type CodeEnd struct {
	ExecutionCount int    `json:"execution_count"`
	Outcome        string `json:"outcome"`
	StateLost      bool   `json:"state_lost"` // the variables of the context are lost: its interpreter died or was killed
}

// CodeContext is an interpreter of a sandbox: a namespace with its own process.
type CodeContext struct {
	ID       string `json:"id"` // id; for a default context, the name of its language
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

// CodeContextRequest requests a new context.
type CodeContextRequest struct {
	Language string `json:"language,omitempty"` // empty: python
	Cwd      string `json:"cwd,omitempty"`      // empty: the user's home
}
