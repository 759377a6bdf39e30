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

// Error is an answer of the daemon other than success.
type Error struct {
	Status  int // HTTP status
	Message string
	Code    string // such as "sandbox_not_found": see docs/errors.md
	Field   string // the wrong field of the request; empty if no field is wrong
	Fix     string // what usually helps

	Conflicts []ApplyFile // for the code apply_conflict: files that both sandboxes have changed

	RetryAfter time.Duration // time after which the same request may succeed; 0: repeating it is useless

	RequestID string // id of the request in the log and the audit log of the daemon; empty if unknown
}

func (e *Error) Error() string { return e.Message }

// Is reports whether target is the ErrorCode of e.
func (e *Error) Is(target error) bool {
	code, ok := target.(ErrorCode)
	return ok && string(code) == e.Code
}

// ErrorCode is the code of an Error, for errors.Is.
type ErrorCode string

func (c ErrorCode) Error() string { return string(c) }

// IsStatus reports whether err is an *Error with the given HTTP status. An *ArgumentError counts as
// 400, as the daemon would have answered.
func IsStatus(err error, status int) bool {
	if errors.As(err, new(*ArgumentError)) {
		return status == http.StatusBadRequest
	}
	var e *Error
	return errors.As(err, &e) && e.Status == status
}

// IsNotFound reports whether the daemon answered that the named object does not exist.
func IsNotFound(err error) bool { return IsStatus(err, http.StatusNotFound) }

func apiError(resp *http.Response) error {
	if resp.StatusCode < http.StatusBadRequest {
		to := resp.Header.Get("Location")
		return &Error{Status: resp.StatusCode, Message: fmt.Sprintf("%s: not an answer of a forkd daemon: it redirects to "+
			"%q, which is not followed: the daemon's URL is likely wrong", resp.Status, to[:min(len(to), 200)]),
			Fix: "correct the URL of the daemon"}
	}
	p, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // after a read error, a part of the body suffices
	var body v1.Error
	if json.Unmarshal(p, &body) == nil && body.Message != "" {
		if body.Code == string(ErrNoSuchRoute) {
			body.Message += ": the daemon may be older than this client"
		}
		retry, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 if there is none
		return &Error{Status: resp.StatusCode, Message: body.Message, Code: body.Code, Field: body.Field, Fix: body.Fix,
			Conflicts:  body.Conflicts,
			RetryAfter: time.Duration(max(retry, 0)) * time.Second, RequestID: resp.Header.Get("X-Request-Id")}
	}
	text := strings.TrimSpace(string(p[:min(len(p), 200)]))
	return &Error{Status: resp.StatusCode, Message: fmt.Sprintf("%s: not an answer of a forkd daemon: %q", resp.Status,
		text)}
}
