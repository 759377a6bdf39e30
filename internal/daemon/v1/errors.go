package v1

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/workspace"
	"github.com/forkd/forkd/internal/proto/vm"
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
		badField  *invalid.Error
		warmup    *bake.WarmupError
		noSandbox *sandbox.NotFoundError
		state     *sandbox.StateError
		cut       *sandbox.CutOffError
		lease     *sandbox.LeaseError
		held      *sandbox.HeldError
		noTag     *store.NotFoundError
		exists    *store.ExistsError
		inUse     *store.InUseError
		damaged   *store.DamagedError
		busy      *sandbox.BusyError
		refused   *sandbox.AdmissionError
		line      *sandbox.LineError
		named     *workspace.Error
		guest     *agentclient.Error
		tooLarge  *http.MaxBytesError
		answer    *inbound.AnswerError
	)
	switch {
	case errors.As(err, &request):
		return request.status
	case errors.As(err, &badField), errors.As(err, &warmup):
		return http.StatusBadRequest
	case errors.As(err, &cut), errors.As(err, &held), errors.As(err, &lease): // before what they wrap
		return http.StatusConflict
	case errors.As(err, &noSandbox), errors.As(err, &noTag):
		return http.StatusNotFound
	case errors.As(err, &state), errors.As(err, &exists), errors.As(err, &inUse), errors.As(err, &damaged):
		return http.StatusConflict
	case errors.As(err, &busy):
		return http.StatusServiceUnavailable
	case errors.As(err, &refused):
		if refused.IsMaximum() {
			return http.StatusTooManyRequests
		}
		return http.StatusServiceUnavailable
	case errors.As(err, &line):
		return http.StatusConflict
	case errors.As(err, &named):
		if named.Exists {
			return http.StatusConflict
		}
		return http.StatusNotFound
	case errors.Is(err, vm.ErrBadState), errors.Is(err, vm.ErrShape), errors.Is(err, vm.ErrCPU): // the snapshot's fault
		return http.StatusConflict
	case errors.Is(err, syscall.ENOSPC):
		return http.StatusInsufficientStorage
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &guest):
		return statusOfGuest(guest.Code)
	case errors.Is(err, inbound.ErrUpgrade):
		return http.StatusUpgradeRequired
	case errors.Is(err, inbound.ErrWorker):
		return http.StatusForbidden
	case errors.Is(err, inbound.ErrMethod):
		return http.StatusMethodNotAllowed
	case errors.As(err, &answer):
		return http.StatusBadGateway
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, inbound.ErrIdle):
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

func statusOfGuest(code agentclient.Code) int {
	switch code {
	case agentclient.CodeInvalid, agentclient.CodeUnauthenticated: // the latter: no such user in the guest
		return http.StatusBadRequest
	case agentclient.CodeNotFound:
		return http.StatusNotFound
	case agentclient.CodeExists, agentclient.CodeBusy:
		return http.StatusConflict
	case agentclient.CodeNoSpace:
		return http.StatusInsufficientStorage
	case agentclient.CodeUnavailable:
		return http.StatusServiceUnavailable
	case agentclient.CodeTimeout:
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway // the guest failed, not the daemon
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	if status >= http.StatusInternalServerError && r.Context().Err() == nil {
		a.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	body := apiv1.Error{Message: err.Error()}
	var refused *sandbox.AdmissionError
	if errors.As(err, &refused) {
		body.Code = refused.Code
		w.Header().Set("Retry-After", admissionRetry)
	}
	_ = writeJSON(w, status, body)
}

// admissionRetry is after how many seconds a refused fork is worth another try: sandboxes end, and
// the host's figures of free memory follow.
const admissionRetry = "5"

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
