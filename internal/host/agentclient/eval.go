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
	"unicode/utf8"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// EvalOptions are the optional parameters of Eval.
type EvalOptions struct {
	ContextID string            // empty: the language's default context
	Language  string            // empty: python; cannot be combined with ContextID
	Env       map[string]string // for this call only
	// 0 means no timeout. After the timeout, the guest interrupts the code, and kills the interpreter
	// if the code does not end.
	Timeout   time.Duration
	MaxOutput int // maximum bytes of each of stdout, stderr, the result, and the texts of an error; 0: 8 MiB
}

// EvalResult is the result of an evaluation.
type EvalResult struct {
	Result    *string // repr of the last expression; nil if there is none, or its value is None
	Stdout    []byte
	Stderr    []byte
	Error     *EvalError // exception that ended the code
	TimedOut  bool
	Restarted bool // only with TimedOut: the interpreter was killed, and its state is lost
	Truncated bool // some output was longer than MaxOutput and was cut
}

// EvalError is an exception in evaluated code.
type EvalError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

func (e *EvalError) Error() string { return e.Name + ": " + e.Value }

// Err returns nil if the code has completed and the output is whole. Otherwise it returns
// ErrTimeout, the *EvalError or ErrOutputTruncated.
func (r EvalResult) Err() error {
	switch {
	case r.TimedOut:
		return ErrTimeout
	case r.Error != nil:
		return r.Error
	case r.Truncated:
		return ErrOutputTruncated
	}
	return nil
}

// evalSlack is how much time a guest may take to report the end of the code, in addition to the
// timeout and agentproto.EvalGrace.
const evalSlack = 5 * time.Second

// Eval runs code in a warm interpreter of the guest. The error is nil if the guest has reported how
// the code ended. An exception of the code is in EvalResult.Error.
func (c *Client) Eval(ctx context.Context, code string, opts EvalOptions) (EvalResult, error) {
	req := agentproto.ExecuteRequest{Code: code, ContextID: opts.ContextID, Language: opts.Language, Env: opts.Env,
		Repr: true}
	if opts.Timeout > 0 {
		req.TimeoutMS = max(1, opts.Timeout.Milliseconds())
	}
	body, err := json.Marshal(req)
	if err != nil {
		return EvalResult{}, fmt.Errorf("eval: %w", err)
	}
	callCtx, cancel := context.WithCancel(ctx)
	if opts.Timeout > 0 {
		callCtx, cancel = context.WithTimeout(ctx, opts.Timeout+agentproto.EvalGrace+evalSlack)
	}
	defer cancel()
	limit := opts.MaxOutput
	if limit <= 0 {
		limit = defaultMaxOutput
	}
	e := evaluation{limit: limit, keep: c.Keep}
	e.stdout.limit, e.stderr.limit = limit, limit
	err = e.run(callCtx, c.code, body)
	e.result.Stdout, e.result.Stderr = e.stdout.buf.Bytes(), e.stderr.buf.Bytes()
	e.result.Truncated = e.result.Truncated || e.stdout.truncated || e.stderr.truncated
	if err != nil && opts.Timeout > 0 && ctx.Err() == nil && callCtx.Err() != nil {
		e.result.TimedOut = true // closing the connection makes the guest interrupt the code
		return e.result, nil
	}
	return e.result, err
}

type evaluation struct {
	result         EvalResult
	stdout, stderr capped
	limit          int
	errorBytes     int
	keep           func(int) error
	longest        int // length of the longest line so far, including unread parts
}

// kept returns how many bytes of the code's output are kept.
func (e *evaluation) kept() int {
	n := e.stdout.buf.Len() + e.stderr.buf.Len() + e.errorBytes
	if e.result.Result != nil {
		n += len(*e.result.Result)
	}
	return n
}

// split is like bufio.ScanLines. In addition, while a long line arrives, it counts the memory that
// the line will take when decoded.
func (e *evaluation) split(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if grown := len(data) - e.longest; grown > 0 {
		e.longest = len(data)
		if err := keep(e.keep, decodedLine*grown); err != nil {
			return 0, nil, err
		}
	}
	return bufio.ScanLines(data, atEOF)
}

func (e *evaluation) run(ctx context.Context, client *http.Client, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, codeURL+"/execute", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("eval: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("eval: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return httpError("eval", resp)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	lines.Split(e.split)
	for total := 0; lines.Scan(); {
		// Returning closes the connection, which makes the guest interrupt the code.
		if total += len(lines.Bytes()); total > maxTotal(e.limit) {
			e.result.Error = &EvalError{Name: "OutputLimit", Value: fmt.Sprintf("interrupted after %d bytes of output", total)}
			e.result.Truncated = true
			return nil
		}
		before := e.kept()
		done, err := e.line(lines.Bytes())
		if err == nil {
			err = keep(e.keep, e.kept()-before)
		}
		if err != nil {
			return fmt.Errorf("eval: reply: %w", err)
		}
		if done {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("eval: reply: %w", err)
	}
	return errors.New("eval: the reply ended before the code did")
}

// line handles one message of the /execute stream. It returns true if the message is the last one.
func (e *evaluation) line(line []byte) (done bool, err error) {
	var m struct {
		Type string `json:"type"`
		Text string `json:"text"`
		Main bool   `json:"is_main_result"`

		Restarted bool `json:"restarted"`
		EvalError
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return false, err
	}
	switch m.Type {
	case "stdout":
		e.stdout.addText(m.Text)
	case "stderr":
		e.stderr.addText(m.Text)
	case "error":
		ee := &EvalError{e.cut(m.Name), e.cut(m.Value), e.cut(m.Traceback)}
		e.result.Error, e.errorBytes = ee, len(ee.Name)+len(ee.Value)+len(ee.Traceback)
	case "result":
		// Drop displayed values, and other forms of the result, because only E2B's clients use
		// them.
		if m.Main && e.result.Result == nil {
			text := e.cut(m.Text)
			e.result.Result = &text
		}
	case "timeout":
		e.result.TimedOut, e.result.Restarted = true, m.Restarted
	case "end_of_execution":
		return true, nil
	}
	return false, nil
}

// cut returns approximately the first e.limit bytes of a text. If the text is longer, cut marks the
// result as truncated.
func (e *evaluation) cut(text string) string {
	e.result.Truncated = e.result.Truncated || len(text) > e.limit
	return cut(text, e.limit)
}

// cut returns approximately the first limit bytes of a text, in whole characters, and then a note
// of the total length. If the text is not longer than the limit, cut returns it unchanged.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	head := text[:limit]
	for len(head) > 0 && !utf8.RuneStart(text[len(head)]) {
		head = head[:len(head)-1]
	}
	return fmt.Sprintf("%s… (cut, %d bytes in all)", head, len(text))
}

// Interrupt interrupts the code that runs in a context, once. It reports whether code was running.
// The code may catch the interrupt and continue. An empty contextID means the default context of
// Python.
func (c *Client) Interrupt(ctx context.Context, contextID string) (bool, error) {
	var answer struct {
		Interrupted bool `json:"interrupted"`
	}
	err := c.onContext(ctx, contextID, "interrupt", func(body io.Reader) error {
		return json.NewDecoder(io.LimitReader(body, maxControlReply)).Decode(&answer)
	})
	return answer.Interrupted, err
}

// Restart replaces the interpreter of a context. Code that runs in it ends, and its variables are
// lost.
func (c *Client) Restart(ctx context.Context, contextID string) error {
	return c.onContext(ctx, contextID, "restart", func(io.Reader) error { return nil })
}

// defaultContext is the context of calls that do not name a context.
const defaultContext = "python"

func (c *Client) onContext(ctx context.Context, contextID, verb string, read func(body io.Reader) error) error {
	if contextID == "" {
		contextID = defaultContext
	}
	op := verb + " interpreter"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, codeURL+"/contexts/"+url.PathEscape(contextID)+"/"+verb,
		nil)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	resp, err := c.code.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return httpError(op, resp)
	}
	if err := read(resp.Body); err != nil {
		return fmt.Errorf("%s: reply: %w", op, err)
	}
	return nil
}
