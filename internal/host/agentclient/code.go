package agentclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// CodeRequest is code to run in an interpreter of the guest.
type CodeRequest struct {
	Code      string
	ContextID string            // empty: the language's default context
	Language  string            // empty: python; cannot be combined with ContextID
	Env       map[string]string // for this call only
	Repr      bool              // a string that is a result is shown with quotes
	// 0 means no timeout. After the timeout, the guest interrupts the code, and kills the interpreter
	// if the code does not end.
	Timeout time.Duration
}

// CodeSink receives the output of running code. Its functions are called from one goroutine. If one
// of them returns an error, RunCode returns that error, and the guest interrupts the code.
type CodeSink struct {
	Started   func(executionCount int) error // called first, once
	Output    func(s Stream, text string) error
	Result    func(main bool, data map[string]json.RawMessage) error // data: all forms of one value, by media type
	Exception func(EvalError) error
}

// CodeEnd describes how code ended.
type CodeEnd struct {
	ExecutionCount int
	Raised         bool // the code ended with an exception
	Died           bool // the interpreter died
	TimedOut       bool
	Restarted      bool // only with TimedOut: the interpreter was killed, and its state is lost
}

// diedError is the name of the exception that an agent reports when the interpreter has died.
const diedError = "UnexpectedEndOfExecution"

// maxForms is the maximum number of forms of one result. Forms with custom names are counted
// separately, with the same maximum.
const maxForms = 64

// mediaType returns the media type of a form in which E2B's protocol sends a result, such as
// "image/png" for "png". It returns false for an unknown form.
func mediaType(form string) (string, bool) {
	switch form {
	case "text":
		return "text/plain", true
	case "html", "markdown", "latex":
		return "text/" + form, true
	case "svg":
		return "image/svg+xml", true
	case "png", "jpeg":
		return "image/" + form, true
	case "pdf", "json", "javascript":
		return "application/" + form, true
	case "data", "chart":
		return "e2b/" + form, true
	}
	return "", false
}

// RunCode runs code in a warm interpreter of the guest and passes its output to the given sink. The
// error is nil if the guest has reported how the code ended.
func (c *Client) RunCode(ctx context.Context, req CodeRequest, sink CodeSink) (CodeEnd, error) {
	execute := agentproto.ExecuteRequest{Code: req.Code, ContextID: req.ContextID, Language: req.Language, Env: req.Env,
		Repr: req.Repr}
	if req.Timeout > 0 {
		execute.TimeoutMS = max(1, req.Timeout.Milliseconds())
	}
	body, err := json.Marshal(execute)
	if err != nil {
		return CodeEnd{}, fmt.Errorf("run code: %w", err)
	}
	callCtx, cancel := context.WithCancel(ctx)
	if req.Timeout > 0 {
		callCtx, cancel = context.WithTimeout(ctx, req.Timeout+agentproto.EvalGrace+evalSlack)
	}
	defer cancel()
	resp, err := c.codeCall(callCtx, "run code", http.MethodPost, "/execute", body)
	if err != nil {
		return CodeEnd{}, err
	}
	defer resp.Body.Close()
	run := codeRun{sink: sink}
	err = run.read(resp.Body, c.Keep)
	if err != nil && run.failed == nil && req.Timeout > 0 && ctx.Err() == nil && callCtx.Err() != nil {
		run.end.TimedOut = true // closing the connection makes the guest interrupt the code
		return run.end, nil
	}
	return run.end, err
}

// codeRun is one call of /execute.
type codeRun struct {
	sink   CodeSink
	end    CodeEnd
	failed error // error that the sink has returned
}

// decodedLine is the memory, in bytes, that Client.Keep is asked for with each byte of a line: one
// byte for the line, and three for its decoded text. A byte that is not UTF-8 becomes three bytes
// when decoded.
const decodedLine = 4

func (c *codeRun) read(body io.Reader, ask func(int) error) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	lines.Split((&evaluation{keep: ask}).split)
	for lines.Scan() {
		done, err := c.line(lines.Bytes())
		if err != nil {
			return fmt.Errorf("run code: reply: %w", err)
		}
		if done {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("run code: reply: %w", err)
	}
	return errors.New("run code: the reply ended before the code did")
}

// line handles one message of the stream. It returns true if the message is the last one.
func (c *codeRun) line(line []byte) (done bool, err error) {
	var m struct {
		Type      string `json:"type"`
		Text      string `json:"text"`
		Count     int    `json:"execution_count"`
		Restarted bool   `json:"restarted"`
		EvalError
	}
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(line, &kind); err != nil {
		return false, err
	}
	if kind.Type == "result" { // do not decode a result, because its field "text" may not be a string
		main, data, err := formsOf(bytes.ToValidUTF8(line, []byte("\uFFFD")))
		if err == nil {
			err = c.sink.Result(main, data)
			c.failed = err
		}
		return false, err
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return false, err
	}
	switch m.Type {
	case "number_of_executions":
		c.end.ExecutionCount = m.Count
		err = c.sink.Started(m.Count)
	case "stdout":
		err = c.sink.Output(Stdout, m.Text)
	case "stderr":
		err = c.sink.Output(Stderr, m.Text)
	case "error":
		c.end.Raised, c.end.Died = true, c.end.Died || m.Name == diedError
		err = c.sink.Exception(m.EvalError)
	case "timeout":
		c.end.TimedOut, c.end.Restarted = true, m.Restarted
	case "end_of_execution":
		return true, nil
	}
	c.failed = err
	return false, err
}

// formsOf returns the forms of a result, by media type. It does not decode the forms, because a
// guest could choose bytes whose decoded form is many times larger.
func formsOf(line []byte) (main bool, data map[string]json.RawMessage, err error) {
	data = map[string]json.RawMessage{}
	err = eachField(line, func(name string, value json.RawMessage) error {
		switch name {
		case "is_main_result":
			return json.Unmarshal(value, &main)
		case "extra":
			return eachField(value, func(name string, value json.RawMessage) error {
				if _, taken := data[name]; !taken {
					data[name] = value
				}
				return nil
			})
		}
		if media, ok := mediaType(name); ok {
			data[media] = value
		}
		return nil
	})
	return main, data, err
}

// eachField calls f with each field of a JSON object.
func eachField(object []byte, f func(name string, value json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(object))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return errors.Join(err, errors.New("a result is not an object"))
	}
	for n := 0; dec.More(); n++ {
		if n == maxForms {
			return errTooMuch
		}
		name, err := dec.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		// The type assertion cannot fail, because the decoder accepts only strings as keys.
		if err := f(name.(string), value); err != nil {
			return err
		}
	}
	return nil
}

// CodeContext is a namespace for code. Each context has its own interpreter in the guest.
type CodeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

// maxContexts is the maximum length of a list of contexts. The real agent has at most 64.
const maxContexts = 1024

// Contexts lists the contexts of the guest, oldest first.
func (c *Client) Contexts(ctx context.Context) ([]CodeContext, error) {
	const op = "list contexts"
	var list []CodeContext
	if err := c.codeAnswer(ctx, op, http.MethodGet, "/contexts", nil, &list); err != nil {
		return nil, err
	}
	if len(list) > maxContexts {
		return nil, fmt.Errorf("%s: %w", op, errTooMuch)
	}
	return list, nil
}

// CreateContext creates a context and starts its interpreter. An empty language means Python, and
// an empty cwd means the user's home.
func (c *Client) CreateContext(ctx context.Context, language, cwd string) (made CodeContext, err error) {
	body, err := json.Marshal(map[string]string{"language": language, "cwd": cwd})
	if err != nil {
		return made, fmt.Errorf("create context: %w", err)
	}
	err = c.codeAnswer(ctx, "create context", http.MethodPost, "/contexts", body, &made)
	return made, err
}

// DeleteContext deletes a context and ends the code that runs in it.
func (c *Client) DeleteContext(ctx context.Context, id string) error {
	return c.codeAnswer(ctx, "delete context", http.MethodDelete, "/contexts/"+url.PathEscape(id), nil, nil)
}

// codeAnswer makes a call of the code interpreter protocol. If out is not nil, codeAnswer decodes
// the answer into it.
func (c *Client) codeAnswer(ctx context.Context, op, method, path string, body []byte, out any) error {
	resp, err := c.codeCall(ctx, op, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxControlReply)).Decode(out); err != nil {
		return fmt.Errorf("%s: reply: %w", op, err)
	}
	return nil
}

// codeCall makes a call of the code interpreter protocol. The caller must close the body of the
// answer.
func (c *Client) codeCall(ctx context.Context, op, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, codeURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.code.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, httpError(op, resp)
	}
	return resp, nil
}
