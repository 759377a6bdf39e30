package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "github.com/forkd/forkd/api/v1"
)

// Error is an answer of the daemon that is not a success.
type Error struct {
	Status  int // HTTP status
	Message string
	Code    string // such as "sandbox_not_found": see docs/errors.md
	Field   string // of the request, that is wrong; empty if none is
	Fix     string // what helps as a rule

	RetryAfter time.Duration // when the same request may succeed; 0: it is not worth while

	RequestID string // that the log and the audit log of the daemon have; empty if unknown
}

func (e *Error) Error() string { return e.Message }

// Is reports whether target is the ErrorCode of the error.
func (e *Error) Is(target error) bool {
	code, ok := target.(ErrorCode)
	return ok && string(code) == e.Code
}

// ErrorCode is the code of an Error, for errors.Is.
type ErrorCode string

func (c ErrorCode) Error() string { return string(c) }

// IsStatus reports whether err is an *Error with the given HTTP status. An *ArgumentError counts as 400,
// with which the daemon would have answered.
func IsStatus(err error, status int) bool {
	if errors.As(err, new(*ArgumentError)) {
		return status == http.StatusBadRequest
	}
	var e *Error
	return errors.As(err, &e) && e.Status == status
}

// IsNotFound reports whether the daemon does not know what was named.
func IsNotFound(err error) bool { return IsStatus(err, http.StatusNotFound) }

func apiError(resp *http.Response) error {
	p, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // what was read is what can be told
	var body v1.Error
	if json.Unmarshal(p, &body) == nil && body.Message != "" {
		retry, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 where there is none
		return &Error{Status: resp.StatusCode, Message: body.Message, Code: body.Code, Field: body.Field, Fix: body.Fix,
			RetryAfter: time.Duration(max(retry, 0)) * time.Second, RequestID: resp.Header.Get("X-Request-Id")}
	}
	text := strings.TrimSpace(string(p[:min(len(p), 200)]))
	return &Error{Status: resp.StatusCode, Message: fmt.Sprintf("%s: not an answer of a forkd daemon: %q", resp.Status,
		text)}
}
