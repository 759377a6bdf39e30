package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	v1 "github.com/forkd/forkd/api/v1"
)

// Messages of RunCode and of related methods.
type (
	CodeRequest        = v1.CodeRequest
	CodeException      = v1.CodeException
	CodeContext        = v1.CodeContext
	CodeContextRequest = v1.CodeContextRequest
)

// CodeResult is a value that code displayed, in one or more media types.
type CodeResult struct {
	Main bool                       // true for the value of the last expression, false for display()
	Data map[string]json.RawMessage // forms of the value by media type; use Text, Bytes and JSON to read them
}

// Text returns the form of a textual media type, such as "text/plain" or "text/html"; empty if
// there is none.
func (r CodeResult) Text(mediaType string) string {
	var text string
	if json.Unmarshal(r.Data[mediaType], &text) != nil {
		return ""
	}
	return text
}

// Bytes returns the form of a binary media type, such as "image/png"; nil if there is none.
func (r CodeResult) Bytes(mediaType string) []byte {
	data, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(r.Text(mediaType), "\n", ""))
	if err != nil || len(data) == 0 {
		return nil
	}
	return data
}

// Execution is the outcome of code, with everything that the code displayed.
type Execution struct {
	Results        []CodeResult
	Stdout, Stderr string
	Exception      *CodeException // exception that the code did not catch; nil if there was none
	ExecutionCount int
	Outcome        string // "finished", "exception", "timeout" or "died"
	StateLost      bool   // the variables of the context are lost
	Truncated      bool   // an output or the results had more bytes than CodeHandlers.Keep
}

// Text returns the text of the value of the last expression; empty if that expression has no value.
func (e Execution) Text() string {
	for _, r := range e.Results {
		if r.Main {
			return r.Text("text/plain")
		}
	}
	return ""
}

// CodeHandlers are called with the output of code as it arrives. Nil handlers are skipped. An error
// of a handler stops the code, and RunCode returns it.
type CodeHandlers struct {
	Stdout, Stderr func(text string) error
	Result         func(CodeResult) error
	Exception      func(CodeException) error

	// Keep is the maximum number of bytes of each output in the Execution, and the maximum for all
	// results together. The Execution has the beginning of each output, and the results for which
	// there is room. A part of an output counts for at least 64 bytes, and a result for 1 KiB. The
	// handlers receive everything. 0 means 64 MiB.
	Keep int
}

// maxKept is the default of CodeHandlers.Keep.
const maxKept = 64 << 20

// A part of an output counts as at least leastPart bytes, and a result as at least leastResult
// bytes. The reason is that a result takes memory beyond its bytes. In the other SDKs, a part of an
// output does so too, and all SDKs use the same numbers.
const (
	leastPart   = 64
	leastResult = 1 << 10
)

// maxCodeEvent bounds an event of running code, in bytes. The longest event is a result. The daemon
// accepts results of up to 32 MiB from a guest.
const maxCodeEvent = 64 << 20

// RunCode runs code in a warm interpreter of a sandbox. The error is nil if the outcome is known.
// An exception that the code raised is in the Execution. When ctx ends, the code is interrupted.
func (c *Client) RunCode(ctx context.Context, id string, req CodeRequest, on CodeHandlers) (e Execution, err error) {
	if err := checkCode(req); err != nil {
		return e, err
	}
	p, err := json.Marshal(req)
	if err != nil {
		return e, err
	}
	resp, err := c.send(ctx, http.MethodPost, sandboxPath(id, "/code"), bytes.NewReader(p), http.Header{
		"Content-Type": {"application/json"}, "Accept": {v1.NDJSON},
	})
	if err != nil {
		return e, err
	}
	defer resp.Body.Close()
	run := codeRun{Execution: &e, on: on}
	defer func() { e.Stdout, e.Stderr = run.stdout.text.String(), run.stderr.text.String() }()
	for events := eventsOf(resp.Body, maxCodeEvent); ; {
		var event v1.CodeEvent
		if err := events.next(&event); err != nil {
			return e, broken(ctx, "run code", 0, err)
		}
		if done, err := run.take(event); done || err != nil {
			return e, err
		}
	}
}

// codeRun is the state of one RunCode.
type codeRun struct {
	*Execution
	on             CodeHandlers
	stdout, stderr keptOutput
	results        int // bytes of the results that are kept; bounded by CodeHandlers.Keep
}

// keptOutput is the beginning of an output.
type keptOutput struct {
	text strings.Builder
	size int  // bytes of text, with at least leastPart for each part; bounded by CodeHandlers.Keep
	full bool // a part did not fit; later parts are dropped too, because they would follow a gap
}

// fits reports whether n more bytes fit in addition to the *kept bytes that are kept already. If
// they fit, it adds n to *kept.
func (e *codeRun) fits(kept *int, n int) bool {
	if *kept+n > cmp.Or(e.on.Keep, maxKept) {
		e.Truncated = true
		return false
	}
	*kept += n
	return true
}

func (e *codeRun) keep(o *keptOutput, text string) {
	if o.full = o.full || !e.fits(&o.size, max(leastPart, len(text))); !o.full {
		o.text.WriteString(text)
	}
}

func sizeOf(r v1.CodeResult) (n int) {
	for name, data := range r.Data {
		n += len(name) + len(data) + 64 // cost of the map's entry
	}
	return max(leastResult, n)
}

// take adds an event and reports whether it was the last event.
func (e *codeRun) take(event v1.CodeEvent) (done bool, err error) {
	on := e.on
	switch {
	case event.Started != nil:
		e.ExecutionCount = event.Started.ExecutionCount
	case event.Stdout != "":
		e.keep(&e.stdout, event.Stdout)
		err = call(on.Stdout, event.Stdout)
	case event.Stderr != "":
		e.keep(&e.stderr, event.Stderr)
		err = call(on.Stderr, event.Stderr)
	case event.Result != nil:
		if e.fits(&e.results, sizeOf(*event.Result)) {
			e.Results = append(e.Results, CodeResult(*event.Result))
		}
		err = call(on.Result, CodeResult(*event.Result))
	case event.Exception != nil:
		e.Exception = event.Exception
		err = call(on.Exception, *event.Exception)
	case event.End != nil:
		e.ExecutionCount, e.Outcome, e.StateLost = event.End.ExecutionCount, event.End.Outcome, event.End.StateLost
		return true, nil
	case event.Error != "":
		return false, &Error{Status: event.Status, Message: event.Error, Code: event.Code}
	}
	return false, err
}

func call[T any](handler func(T) error, value T) error {
	if handler == nil {
		return nil
	}
	return handler(value)
}

// Contexts lists the contexts of a sandbox, oldest first. A context is an interpreter with its own
// variables.
func (c *Client) Contexts(ctx context.Context, id string) (list []CodeContext, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/contexts"), nil, &list)
	return list, err
}

// CreateContext makes a context in a sandbox. Set CodeRequest.ContextID to the id of the context,
// or pass this id to RestartEval or InterruptEval.
func (c *Client) CreateContext(ctx context.Context, id string, req CodeContextRequest) (made CodeContext, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/contexts"), req, &made)
	return made, err
}

// DeleteContext deletes a context of a sandbox and kills the code that runs in it.
func (c *Client) DeleteContext(ctx context.Context, id, contextID string) error {
	return c.call(ctx, http.MethodDelete, sandboxPath(id, "/contexts/"+url.PathEscape(contextID)), nil, nil)
}
