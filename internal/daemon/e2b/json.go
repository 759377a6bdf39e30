package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	v1 "github.com/forkd/forkd/internal/daemon/v1"
)

// failure is an error with its HTTP status.
type failure struct {
	status int
	msg    string
}

func (f *failure) Error() string { return f.msg }

// errTooMany refuses what would be one too many at once.
var errTooMany = &failure{http.StatusServiceUnavailable, "too many requests at once; try again"}

func badRequest(format string, args ...any) error {
	return &failure{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// unsupported refuses what E2B has and forkd has not.
func unsupported(field, instead string) error {
	return badRequest("%s: forkd does not have this: %s", field, instead)
}

// unserved is the error of a route that is E2B's, and not here.
func unserved(r *http.Request) error {
	return &failure{http.StatusNotImplemented, fmt.Sprintf("%s %s: forkd does not have this (see docs/e2b.md)", r.Method,
		r.URL.Path)}
}

func (a *api) unserved(_ http.ResponseWriter, r *http.Request) error { return unserved(r) }

// errorBody is E2B's. The SDKs read the status from it too.
type errorBody struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	if body := bodyOf(err); body.Code >= http.StatusInternalServerError && body.Code != http.StatusNotImplemented &&
		r.Context().Err() == nil {
		a.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "request_id", audit.From(r.Context()).RequestID,
			"error", err)
	}
	if bodyOf(err).Code != http.StatusRequestEntityTooLarge {
		writeError(w, err)
		return
	}
	w.Header().Set("Connection", "close")
	writeError(w, err)
	v1.Drain(w, r)
}

func writeError(w http.ResponseWriter, err error) {
	body := bodyOf(err)
	if body.Code == http.StatusTooManyRequests || body.Code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	_ = writeJSON(w, body.Code, body)
}

// retryAfter is when the SDKs may ask again, in seconds: when a sandbox has ended, as a rule.
const retryAfter = "5"

func bodyOf(err error) errorBody {
	var own *failure
	if errors.As(err, &own) {
		return errorBody{own.status, own.msg}
	}
	if status := buildStatusOf(err); status != 0 {
		return errorBody{status, err.Error()}
	}
	return errorBody{v1.StatusOf(err), err.Error()}
}

// readJSON reads a body, which may be empty.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // a connection without deadlines is a test's
	defer rc.SetReadDeadline(time.Time{})
	body, err := io.ReadAll(face.ShareOf(r).Body(http.MaxBytesReader(w, r.Body, maxBody)))
	if err != nil || len(body) == 0 {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return badRequest("request body: %v", err)
	}
	return nil
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(p)))
	w.WriteHeader(status)
	_, _ = w.Write(p) // the client has gone if this fails
	return nil
}

// seconds reads a timeout of the protocol.
func seconds(n *int64, def time.Duration) (time.Duration, error) {
	if n == nil {
		return def, nil
	}
	if *n < 0 || *n > int64(maxTimeout/time.Second) {
		return 0, badRequest("timeout: %d: want 0 to %d", *n, int64(maxTimeout/time.Second))
	}
	return time.Duration(*n) * time.Second, nil
}
