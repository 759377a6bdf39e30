package v1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/daemon/once"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/workspace"
	"github.com/forkd/forkd/internal/proto/vm"
)

// short cuts text of a client that an error repeats.
func short(text string) string { return fmt.Sprintf("%.100s", text) }

// codeOf is the one place where errors become codes of problems, and so statuses.
func codeOf(err error) code {
	var (
		request   *face.Error
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
		refused   *admit.Error
		line      *sandbox.LineError
		unique    *sandbox.NotUniqueError
		named     *workspace.Error
		guest     *agentclient.Error
		tooLarge  *http.MaxBytesError
		answer    *inbound.AnswerError
		scope     *auth.ScopeError
		prefix    *sandbox.PrefixError
		noKVM     *vmmclient.NoKVMError
	)
	switch {
	case errors.As(err, &noKVM):
		return codeNoKVM
	case errors.As(err, &request):
		return codeOfStatus(request.Status)
	case errors.As(err, &scope), errors.As(err, &prefix):
		return codeScope
	case errors.As(err, &badField):
		return codeInvalidField
	case errors.As(err, &warmup):
		return codeWarmup
	case errors.As(err, &cut): // this and the next two before what they wrap
		return codeCutOff
	case errors.As(err, &held):
		return codeHeld
	case errors.As(err, &lease):
		return codeSnapshotUnusable
	case errors.As(err, &noSandbox):
		return codeNoSandbox
	case errors.As(err, &noTag):
		return codeNoSnapshot
	case errors.As(err, &state):
		return codeState
	case errors.As(err, &exists):
		return codeSnapshotExists
	case errors.As(err, &inUse):
		return codeSnapshotInUse
	case errors.As(err, &damaged), errors.Is(err, vm.ErrBadState), errors.Is(err, vm.ErrShape), errors.Is(err, vm.ErrCPU):
		return codeSnapshotUnusable
	case errors.As(err, &busy):
		return codeBusy
	case errors.As(err, &refused):
		return code(refused.Code)
	case errors.As(err, &unique):
		return codeNotUnique
	case errors.As(err, &line):
		return codeLine
	case errors.As(err, &named):
		if named.Exists {
			return codeWorkspaceExists
		}
		return codeNoWorkspace
	case errors.Is(err, once.ErrOther):
		return codeKeyReused
	case errors.Is(err, once.ErrUnknown):
		return codeOutcomeUnknown
	case errors.Is(err, syscall.ENOSPC):
		return codeNoSpace
	case errors.As(err, &tooLarge):
		return codeTooLarge
	case errors.As(err, &guest):
		return codeOfGuest(guest.Code)
	case errors.Is(err, inbound.ErrUpgrade):
		return codeUpgrade
	case errors.Is(err, inbound.ErrWorker):
		return codeForbidden
	case errors.Is(err, inbound.ErrMethod):
		return codeMethod
	case errors.As(err, &answer):
		return codeGuestFailed
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, inbound.ErrIdle):
		return codeTimeout
	case vmpool.IsEnd(err):
		return codeVMEnded
	}
	return codeInternal
}

// codeOfStatus is the code of an error of which nothing but its status is known.
func codeOfStatus(status int) code {
	switch status {
	case http.StatusBadRequest:
		return codeBadRequest
	case http.StatusUnauthorized:
		return codeUnauthenticated
	case http.StatusUpgradeRequired:
		return codeUpgrade
	case http.StatusForbidden:
		return codeForbidden
	case http.StatusNotFound:
		return codeNoRoute
	case http.StatusMethodNotAllowed:
		return codeMethod
	case http.StatusConflict:
		return codeConflict
	case http.StatusTooManyRequests:
		return codeRate
	case http.StatusServiceUnavailable:
		return codeBusy
	case http.StatusGatewayTimeout:
		return codeTimeout
	}
	return codeInternal
}

func codeOfGuest(c agentclient.Code) code {
	switch c {
	case agentclient.CodeInvalid, agentclient.CodeUnauthenticated: // the latter: no such user in the guest
		return codeBadRequest
	case agentclient.CodeNotFound:
		return codeNoFile
	case agentclient.CodeDenied:
		return codeDenied
	case agentclient.CodeExists, agentclient.CodeTooMany:
		return codeConflict
	case agentclient.CodeBusy:
		return codeGuestBusy
	case agentclient.CodeNoSpace:
		return codeNoSpace
	case agentclient.CodeUnavailable:
		return codeBusy
	case agentclient.CodeTimeout:
		return codeTimeout
	}
	return codeGuestFailed // the guest failed, not the daemon
}

func statusOf(err error) int { return problems[codeOf(err)].status }

func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	if statusOf(err) >= http.StatusInternalServerError && r.Context().Err() == nil {
		a.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "request_id", audit.From(r.Context()).RequestID,
			"error", err)
	}
	if statusOf(err) != http.StatusRequestEntityTooLarge {
		writeProblem(w, err)
		return
	}
	w.Header().Set("Connection", "close")
	writeProblem(w, err)
	Drain(w, r)
}

// Bounds on what is read of a body that was refused.
const (
	maxDrain  = 64 << 20 // bytes
	drainTime = 10 * time.Second
)

// Drain sends the answer, and then reads on: a client that sends all of its body before it reads
// would find a reset connection, and no answer. The answer must have the header Connection: close.
func Drain(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	_ = rc.SetReadDeadline(time.Now().Add(drainTime)) // a connection without deadlines is a test's
	_, _ = io.CopyN(io.Discard, r.Body, maxDrain)     // the client has gone if this fails
}

// unknownRoute answers what no other route takes: 405 where the path has other methods, which the
// answer names (RFC 9110, section 15.5.6), else 404.
func unknownRoute(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" && pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return face.NewError(http.StatusMethodNotAllowed, fmt.Sprintf("%s %s: method not allowed", r.Method,
			short(r.URL.Path)))
	}
	hint := ""
	if strings.HasSuffix(r.URL.Path, "/") {
		hint = ": an id or a name is missing behind the last '/'"
	}
	return face.NewError(http.StatusNotFound, fmt.Sprintf("%s %s: no such route%s", r.Method, short(r.URL.Path), hint))
}
