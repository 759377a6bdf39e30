package v1

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"github.com/forkd/forkd/internal/agentclient"
	"github.com/forkd/forkd/internal/sandbox"
	"github.com/forkd/forkd/internal/store"
)

// requestError is a request that is wrong by itself.
type requestError struct {
	status int
	msg    string
}

func (e *requestError) Error() string { return e.msg }

func badRequest(format string, args ...any) error {
	return &requestError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// statusOf is the one place where errors become status codes.
func statusOf(err error) int {
	var (
		request   *requestError
		invalid   *sandbox.InvalidError
		noSandbox *sandbox.NotFoundError
		state     *sandbox.StateError
		noTag     *store.NotFoundError
		exists    *store.ExistsError
		inUse     *store.InUseError
		damaged   *store.DamagedError
		busy      *sandbox.BusyError
		line      *sandbox.LineError
		workspace *sandbox.WorkspaceError
		guest     *agentclient.Error
		tooLarge  *http.MaxBytesError
	)
	switch {
	case errors.As(err, &request):
		return request.status
	case errors.As(err, &invalid):
		return http.StatusBadRequest
	case errors.As(err, &noSandbox), errors.As(err, &noTag):
		return http.StatusNotFound
	case errors.As(err, &state), errors.As(err, &exists), errors.As(err, &inUse), errors.As(err, &damaged):
		return http.StatusConflict
	case errors.As(err, &busy):
		return http.StatusServiceUnavailable
	case errors.As(err, &line):
		return http.StatusConflict
	case errors.As(err, &workspace):
		if workspace.Exists {
			return http.StatusConflict
		}
		return http.StatusNotFound
	case errors.Is(err, syscall.ENOSPC):
		return http.StatusInsufficientStorage
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &guest):
		return statusOfGuest(guest.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

func statusOfGuest(code agentclient.Code) int {
	switch code {
	case agentclient.CodeInvalid:
		return http.StatusBadRequest
	case agentclient.CodeNotFound:
		return http.StatusNotFound
	case agentclient.CodeExists:
		return http.StatusConflict
	case agentclient.CodeNoSpace:
		return http.StatusInsufficientStorage
	}
	return http.StatusBadGateway // the guest's agent failed, not the daemon
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	if status >= http.StatusInternalServerError && r.Context().Err() == nil {
		a.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	writeError(w, status, err.Error())
}

// unknownRoute answers what no other route takes: 405 where the path has other methods, else 404.
func unknownRoute(mux *http.ServeMux, r *http.Request) error {
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" && pattern != "" {
			return &requestError{http.StatusMethodNotAllowed, fmt.Sprintf("%s %s: method not allowed", r.Method, r.URL.Path)}
		}
	}
	return &requestError{http.StatusNotFound, fmt.Sprintf("%s %s: no such route", r.Method, r.URL.Path)}
}
