package agentclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"
)

// Reasons why a command or an evaluation did not end normally; see ExecResult.Err and
// EvalResult.Err.
var (
	ErrTimeout         = errors.New("timed out")
	ErrCommandNotFound = errors.New("command not found")
	ErrNotExecutable   = errors.New("command is not executable")
	ErrSignaled        = errors.New("killed by a signal")
	ErrOutputTruncated = errors.New("output truncated")
)

// Code classifies an Error. Its values are the codes of the Connect protocol.
type Code string

// Codes that callers distinguish. Other codes of the guest are passed on unchanged.
const (
	CodeInvalid         Code = "invalid_argument" // a field of the request is wrong; the message names it
	CodeNotFound        Code = "not_found"        // no such file, process or context
	CodeUnauthenticated Code = "unauthenticated"  // unknown user or missing token
	// the guest's kernel refuses the operation, such as creating a file in /sys
	CodeDenied      Code = "permission_denied"
	CodeExists      Code = "already_exists"      // the directory exists
	CodeNoSpace     Code = "resource_exhausted"  // the guest's disk is full
	CodeBusy        Code = "aborted"             // the context is running the code of another call
	CodeTooMany     Code = "out_of_range"        // the guest has the maximum number of contexts
	CodeUnavailable Code = "unavailable"         // too many connections to ports of the guest
	CodeRefused     Code = "failed_precondition" // no server listens on the port
	CodeTimeout     Code = "deadline_exceeded"   // DialPort took too long; a command has the Outcome TimedOut instead
	CodeInternal    Code = "internal"            // the agent failed
)

// Error is an error that the agent has reported. Other errors mean that the agent was not reached.
type Error struct {
	Op      string // such as "read file /etc/motd"
	Code    Code
	Message string
}

func (e *Error) Error() string { return e.Op + ": " + e.Message }

// remote converts the error of an RPC to an *Error if it came from the guest.
func remote(op string, err error) error {
	var ce *connect.Error
	switch {
	case errors.As(err, &ce) && connect.IsWireError(err):
		return &Error{Op: op, Code: Code(ce.Code().String()), Message: cut(ce.Message(), maxText)}
	case errors.Is(err, errTooMuch), ce != nil && ce.Code() == connect.CodeResourceExhausted:
		return &Error{Op: op, Code: CodeInternal, Message: errTooMuch.Error()}
	}
	return fmt.Errorf("%s: %w", op, err)
}

// httpError returns the error in the answer of a plain HTTP route. envd sends {"code","message"},
// and the code interpreter sends plain text.
func httpError(op string, resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	message := strings.TrimSpace(string(body))
	var parsed struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &parsed) == nil && parsed.Message != "" {
		message = parsed.Message
	}
	if message == "" {
		message = resp.Status
	}
	message = cut(message, maxText)
	code := CodeInternal
	switch resp.StatusCode {
	case http.StatusBadRequest:
		code = CodeInvalid
	case http.StatusUnauthorized:
		code = CodeUnauthenticated
	case http.StatusForbidden:
		code = CodeDenied
	case http.StatusNotFound:
		code = CodeNotFound
	case http.StatusConflict:
		code = CodeBusy
	case http.StatusTooManyRequests:
		code = CodeTooMany
	case http.StatusInsufficientStorage:
		code = CodeNoSpace
	}
	return &Error{Op: op, Code: code, Message: message}
}
