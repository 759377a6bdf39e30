package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	v1 "github.com/forkd/forkd/api/v1"
)

// Error is an answer of the daemon that is not a success.
type Error struct {
	Status  int // HTTP status
	Message string
	Code    string // of a fork that was not admitted, such as "max_sandboxes"; empty for others
}

func (e *Error) Error() string { return e.Message }

// IsStatus reports whether err is an *Error with the given HTTP status.
func IsStatus(err error, status int) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == status
}

// IsNotFound reports whether the daemon does not know what was named.
func IsNotFound(err error) bool { return IsStatus(err, http.StatusNotFound) }

func apiError(resp *http.Response) error {
	p, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // what was read is what can be told
	var body v1.Error
	if json.Unmarshal(p, &body) == nil && body.Message != "" {
		return &Error{Status: resp.StatusCode, Message: body.Message, Code: body.Code}
	}
	text := strings.TrimSpace(string(p[:min(len(p), 200)]))
	return &Error{Status: resp.StatusCode, Message: fmt.Sprintf("%s: not an answer of a forkd daemon: %q", resp.Status, text)}
}
