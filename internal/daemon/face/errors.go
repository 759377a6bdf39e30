package face

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/daemon/once"
	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/backlog"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/hook"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/loglimit"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vault"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/host/workspace"
	"github.com/forkd/forkd/internal/proto/diffproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// codeOf returns the code of an error for clients. The code determines the HTTP status.
func codeOf(err error) code {
	var (
		request *Error
		refused *admit.Error
		named   *workspace.Error
		disk    *volume.Error
		guest   *agentclient.Error
	)
	switch {
	case is[*vmmclient.NoKVMError](err):
		return codeNoKVM
	case errors.As(err, &request):
		return codeOfStatus(request.Status)
	case is[*auth.ScopeError](err), is[*owner.PrefixError](err), is[*owner.ClosedError](err):
		return codeScope
	case is[*invalid.Error](err):
		return codeInvalidField
	case is[*artifact.Error](err), is[*hub.RegistryError](err), is[*hub.TrustError](err):
		return codeOfHub(err)
	case is[*bake.WarmupError](err):
		return codeWarmup
	case is[*ConflictError](err), is[*tenancy.ChangedError](err):
		return codeApplyConflict
	case is[*tenancy.IncompleteError](err):
		return codeApplyIncomplete
	case is[*tenancy.NoBaseError](err):
		return codeNoBase
	case is[*hook.Error](err):
		return codeHook
	case errors.Is(err, agentclient.ErrNoApply):
		return codeSnapshotUnusable
	case is[*sandbox.CutOffError](err): // these three errors wrap errors of later cases
		return codeCutOff
	case is[*failure.HeldError](err):
		return codeHeld
	case is[*failure.LeaseError](err):
		return codeSnapshotUnusable
	case is[*store.EncryptedError](err), is[*vault.KeyError](err), is[*vault.RoomError](err):
		return codeOfEncryption(err)
	case is[*sandbox.NotFoundError](err):
		return codeNoSandbox
	case is[*store.NotFoundError](err):
		return codeNoSnapshot
	case is[*sandbox.StateError](err):
		return codeState
	case is[*store.ExistsError](err):
		return codeSnapshotExists
	case is[*store.InUseError](err), is[*store.ArrivingError](err):
		return codeSnapshotInUse
	case is[*store.DamagedError](err), is[*store.DiskOnlyError](err), is[*store.TornError](err),
		errors.Is(err, vm.ErrBadState), errors.Is(err, vm.ErrShape), errors.Is(err, vm.ErrCPU):
		return codeSnapshotUnusable
	case is[*admit.BusyError](err):
		return codeBusy
	case errors.As(err, &refused):
		return code(refused.Code)
	case is[*unique.Error](err):
		return codeNotUnique
	case is[*failure.FamilyError](err):
		return codeLine
	case errors.As(err, &named):
		if named.Exists {
			return codeWorkspaceExists
		}
		return codeNoWorkspace
	case errors.As(err, &disk):
		return codeOfVolume(disk)
	case codeOfMount(err) != "":
		return codeOfMount(err)
	case errors.Is(err, once.ErrOther):
		return codeKeyReused
	case errors.Is(err, once.ErrUnknown):
		return codeOutcomeUnknown
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EMLINK): // EMLINK: of a layer, see package hardlink
		return codeNoSpace
	case is[*backlog.Error](err): // checked after ENOSPC, because a backlog may be caused by a full disk
		return codeBusy
	case is[*http.MaxBytesError](err):
		return codeTooLarge
	case errors.As(err, &guest):
		return codeOfGuest(guest.Code)
	case errors.Is(err, inbound.ErrUpgrade):
		return codeUpgrade
	case errors.Is(err, inbound.ErrWorker):
		return codeForbidden
	case errors.Is(err, inbound.ErrMethod):
		return codeMethod
	case is[*inbound.AnswerError](err), is[*diffproto.RefusedError](err): // RefusedError: damaged file system
		return codeGuestFailed
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, inbound.ErrIdle):
		return codeTimeout
	case vmpool.IsEnd(err):
		return codeVMEnded
	}
	return codeOfRouter(err)
}

// is() reports whether err, or an error that it wraps, has the type E.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// codeOfEncryption returns the code of an error about an encrypted snapshot.
func codeOfEncryption(err error) code {
	switch {
	case is[*vault.KeyError](err):
		return codeKey
	case is[*vault.RoomError](err):
		return codeHostMemory
	}
	return codeEncrypted
}

// codeOfMount returns the code of an error of package mounts, or "" for another error.
func codeOfMount(err error) code {
	switch {
	case is[*mounts.NotMountedError](err):
		return codeNoVolume
	case is[*mounts.BusyError](err):
		return codeConflict
	case is[*volume.InUseError](err):
		return codeVolumeInUse
	case is[*mounts.SlotsError](err):
		return codeNoVolumeSlots
	case is[*mounts.HeldError](err), is[*failure.VolumesError](err):
		return codeHasVolumes
	}
	return ""
}

func codeOfVolume(err *volume.Error) code {
	switch {
	case err.Exists:
		return codeVolumeExists
	case err.Unread:
		return codeVolumeUnusable
	}
	return codeNoVolume
}

// codeOfHub returns the code of an error that an artifact, its signatures or a registry has caused.
func codeOfHub(err error) code {
	var remote *hub.RegistryError
	var untrusted *hub.TrustError
	if errors.As(err, &untrusted) {
		switch untrusted.Kind {
		case hub.Unsigned:
			return codeUnsigned
		case hub.Unknown:
			return codeUnknownKey
		}
		return codeBadSignature
	}
	if !errors.As(err, &remote) {
		return codeArtifact
	}
	switch remote.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return codeRegistryDenied
	case http.StatusNotFound:
		return codeNoRemote
	}
	return codeRegistryFailed
}

// codeOfStatus returns the fallback error code for an HTTP status.
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
	case agentclient.CodeInvalid, agentclient.CodeUnauthenticated: // unauthenticated: the guest has no such user
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

// StatusOf chooses the HTTP status of an error.
func StatusOf(err error) int { return problems[codeOf(err)].status }

// Fail sends the error of a request that has not been answered yet.
func (f *Face) Fail(w http.ResponseWriter, r *http.Request, err error) {
	f.FailAs(w, r, err, StatusOf(err), WriteProblem)
}

// FailAs is like Fail, but sends the given status, and calls write() instead of WriteProblem. It
// logs errors with a status of 500 and above.
func (f *Face) FailAs(w http.ResponseWriter, r *http.Request, err error, status int,
	write func(http.ResponseWriter, error)) {
	if isOurs(status, err) && r.Context().Err() == nil {
		f.failures.log(f.Log, r, err)
	}
	SetNode(w, err)
	var sending sendingError
	if status != http.StatusRequestEntityTooLarge && !errors.As(err, &sending) {
		write(w, err)
		return
	}
	w.Header().Set("Connection", "close")
	write(w, err)
	drain(w, r)
}

// Sending marks the error of a request whose client may still be sending a large body. The body is
// read to its end, within bounds, after the answer.
func Sending(err error) error { return sendingError{err} }

type sendingError struct{ error }

func (e sendingError) Unwrap() error { return e.error }

// isOurs reports whether the daemon or its host caused an error with the given status. Guests cause
// status 502, and status 507 if their own disk is full. Clients cause status 503 and 504 by sending
// too many requests, or requests that are too large. The metrics count all of these errors.
func isOurs(status int, err error) bool {
	if status == http.StatusInsufficientStorage {
		return !is[*agentclient.Error](err) || errors.Is(err, syscall.ENOSPC)
	}
	return status == http.StatusInternalServerError && !is[*tenancy.IncompleteError](err)
}

// failures logs failed requests.
type failures struct{ lines *loglimit.Lines }

func newFailures() *failures { return &failures{loglimit.New(loglimit.PerSecond, loglimit.AtOnce)} }

func (f *failures) log(to *slog.Logger, r *http.Request, err error) {
	f.lines.Log(to, slog.LevelError, "request failed", "method", loglimit.Cut(r.Method), "path", loglimit.Cut(r.URL.Path),
		"request_id", audit.From(r.Context()).RequestID, "error", loglimit.Cut(err.Error()))
}

// Abort ends an answer that has begun and cannot be completed. It breaks the connection off, so
// that the client does not mistake a part of the answer for the whole answer. The error is logged
// like the error of a failed request, with the same limit on the rate of lines, because the client
// or a guest may have caused it.
func (f *Face) Abort(r *http.Request, err error) {
	f.failures.log(f.Log, r, fmt.Errorf("the answer broke off: %w", err))
	panic(http.ErrAbortHandler)
}

// Bounds on reading the body of a refused request.
const (
	maxDrain  = 64 << 20 // bytes
	drainTime = 10 * time.Second
)

// drain sends the answer and then reads the rest of the request's body. Without that, a client that
// sends its whole body before it reads would receive a connection reset instead of the answer. The
// answer must have the header Connection: close.
func drain(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	_ = rc.SetReadDeadline(time.Now().Add(drainTime)) // connections of some tests have no deadlines
	_, _ = io.CopyN(io.Discard, r.Body, maxDrain)     // fails only if the client has left
}
