package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
)

// unsupported returns the error for a feature that E2B has and forkd lacks.
func unsupported(field, instead string) error {
	return face.BadRequest("%s: forkd does not have this: %s", field, instead)
}

// unserved returns the error for a route of E2B that forkd does not serve.
func unserved(r *http.Request) error {
	return face.NewError(http.StatusNotImplemented,
		fmt.Sprintf("%s %s: forkd does not have this (see docs/e2b.md)", r.Method, r.URL.Path))
}

func (a *Server) unserved(_ http.ResponseWriter, r *http.Request) error { return unserved(r) }

// errorBody is the body of E2B's errors. The SDKs also read the status from the body.
type errorBody struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (a *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	write := writeError
	if isContent(r.URL.Path) {
		write = writeContentError
	}
	a.Face.FailAs(w, r, err, bodyOf(err).Code, write)
}

func writeError(w http.ResponseWriter, err error) {
	body := bodyOf(err)
	writeErrorBody(w, body.Code, body)
}

// writeErrorBody sends the body of an error. The body has only numbers and texts, so encoding it
// never fails.
func writeErrorBody(w http.ResponseWriter, status int, body any) {
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	p, _ := json.Marshal(body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(p)))
	w.WriteHeader(status)
	_, _ = w.Write(p) // fails only if the client has left
}

// retryAfter is the time after which the SDKs may repeat a request, in seconds. Usually a sandbox
// has ended by then.
const retryAfter = "5"

func bodyOf(err error) errorBody {
	var own *face.Error
	if errors.As(err, &own) {
		return errorBody{own.Status, own.Message}
	}
	if status := buildStatusOf(err); status != 0 {
		return errorBody{status, err.Error()}
	}
	return errorBody{face.StatusOf(err), err.Error()}
}

// readJSON reads a body, which may be empty.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := face.ReadBody(w, r, maxBody)
	if err != nil || len(body) == 0 {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return face.BadRequest("request body: %v", err)
	}
	return nil
}

// seconds() converts a timeout of the protocol to a duration. For nil it returns def.
func seconds(n *int64, def time.Duration) (time.Duration, error) {
	if n == nil {
		return def, nil
	}
	if *n < 0 || *n > int64(maxTimeout/time.Second) {
		return 0, face.BadRequest("timeout: %d: want 0 to %d", *n, int64(maxTimeout/time.Second))
	}
	return time.Duration(*n) * time.Second, nil
}
