package v1

import "encoding/json"

// CodeRequest is code for an interpreter of a sandbox.
type CodeRequest struct {
	Code        string            `json:"code"`
	Language    string            `json:"language,omitempty"`     // empty: python
	ContextID   string            `json:"context_id,omitempty"`   // empty: the language's default context
	TimeoutSecs float64           `json:"timeout_secs,omitempty"` // 0: 30
	Env         map[string]string `json:"env,omitempty"`          // for this call only
	Repr        bool              `json:"repr,omitempty"`         // keep the quotes of a string's text
}

// CodeEvent is one message of the stream of a run of code. The first is Started, the last End or
// Error.
type CodeEvent struct {
	Started   *CodeStarted   `json:"started,omitempty"`
	Stdout    string         `json:"stdout,omitempty"`
	Stderr    string         `json:"stderr,omitempty"`
	Result    *CodeResult    `json:"result,omitempty"`
	Exception *CodeException `json:"exception,omitempty"`
	Keepalive bool           `json:"keepalive,omitempty"` // nothing has happened
	End       *CodeEnd       `json:"end,omitempty"`

	Error  string `json:"error,omitempty"`  // why it is not known how the code ended
	Status int    `json:"status,omitempty"` // with Error: what the same problem as an answer has
	Code   string `json:"code,omitempty"`   // with Error
}

// CodeStarted says that code runs.
type CodeStarted struct {
	ExecutionCount int `json:"execution_count"` // of its interpreter, from 1
}

// CodeResult is a value that code has shown, in one or more forms: text, or base64 for media types that
// are binary, or JSON for application/json, e2b/data (the columns of a data frame) and e2b/chart (what
// a figure shows).
type CodeResult struct {
	Main bool                       `json:"main"` // the value of the last expression, and not of display()
	Data map[string]json.RawMessage `json:"data"` // by media type
}

// CodeException is an exception that code did not catch.
type CodeException struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// CodeEnd says how code ended. Outcome is "finished", "exception", "timeout", or "died" if its
// interpreter did.
type CodeEnd struct {
	ExecutionCount int    `json:"execution_count"`
	Outcome        string `json:"outcome"`
	StateLost      bool   `json:"state_lost"` // the variables of the context are lost: its interpreter died or was killed
}

// CodeContext is an interpreter of a sandbox: a namespace of code with a process of its own.
type CodeContext struct {
	ID       string `json:"id"` // of a default context: its language
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

// CodeContextRequest asks for a new context.
type CodeContextRequest struct {
	Language string `json:"language,omitempty"` // empty: python
	Cwd      string `json:"cwd,omitempty"`      // empty: the user's home
}
