// Package template builds templates for E2B's SDKs: snapshots made from another snapshot, or from a
// container image, by steps like those of a Dockerfile.
//
// The package reads such a template into a plan, which package daemon/build executes. Steps that have a
// snapshot do not run again, and a step that is killed leaves nothing. The variables, user and directory of
// the steps must be known when the plan is made, so the package first asks a guest for those of the base.
//
// Clients can look up their own builds, for a limited time and while the daemon runs. Archives from the
// client are removed when the build has ended. The package does not speak HTTP, and does not decide who may
// build; package e2b does both. Sizes are in bytes unless a name says otherwise.
package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Bounds on builds. maxWait is longer than the hour that the SDKs allow for each upload.
const (
	maxUnended = 16            // of one client, not ended
	maxAll     = 64            // of all clients, not ended
	maxEnded   = 16            // ended, of one client
	keepEnded  = time.Hour     // how long an ended build, with its log, is remembered
	maxWait    = 2 * time.Hour // between the request and the start
)

// Config holds the parameters of a Builder.
type Config struct {
	Manager *sandbox.Manager
	Builds  *build.Builder
	Dir     string // for archives from clients; used by this Builder only
	Log     *slog.Logger
}

// Status is the state of a build, in E2B's words.
type Status string

// The statuses, in their order; a build ends ready or failed.
const (
	Waiting  Status = "waiting"
	Building Status = "building"
	Ready    Status = "ready"
	Failed   Status = "error"
)

// Reason describes why a build failed.
type Reason struct {
	Step    string // number of the step, from 1, or Base or Finalize
	Message string
}

// Phases of a build before and after its steps.
const (
	Base     = "base"
	Finalize = "finalize"
)

// Errors of a Builder, in addition to *invalid.Error.
var (
	ErrUnknown = errors.New("no such build: builds are forgotten when the daemon ends, and some time after they have ended")
	ErrStarted = errors.New("the build is not waiting to be started")
	ErrBusy    = errors.New("too many builds are under way: wait until some have ended")
	ErrTaken   = errors.New("another client is building this template")
)

// Reasons for cancelling builds.
var (
	errReplaced = errors.New("another build of the template was begun")
	errWaited   = fmt.Errorf("it was not started within %v", maxWait)
	errStopping = errors.New("the daemon is ending")
)

// Ask describes the template to build.
type Ask struct {
	Template  string // tag of the snapshot
	CPUs      uint32 // 0: as in the base
	MemoryMiB uint64 // 0: as in the base
	FreeMiB   int    // free space on the disk made from a container image
}

// Build is one build.
type Build struct {
	Ask
	ID  string // a UUID
	Who string // client, named as in auth.Principal
	Log Log

	// Guarded by Builder.mu:
	status Status
	reason Reason
	ended  time.Time
	cancel context.CancelCauseFunc // cancels a started build
	timer  *time.Timer             // limits the wait for the start, or the time after the end
}

// Builder makes templates. Its methods may be called concurrently.
type Builder struct {
	cfg     Config
	uploads *uploads
	running sync.WaitGroup

	mu     sync.Mutex
	builds []*Build // oldest first
	closed bool
}

// New returns a Builder. It removes archives for builds of an earlier daemon.
func New(cfg Config) (*Builder, error) {
	u, err := newUploads(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return &Builder{cfg: cfg, uploads: u}, nil
}

// Close cancels all builds and waits until they have ended.
func (b *Builder) Close() {
	b.mu.Lock()
	b.closed = true
	for _, bd := range b.builds {
		b.callOffLocked(bd, errStopping)
	}
	b.mu.Unlock()
	b.running.Wait()
}

// Request registers a build for client who, to be started later. It replaces a waiting build of the
// same template.
func (b *Builder) Request(who string, ask Ask) (*Build, error) {
	bd := &Build{Ask: ask, ID: uuid.NewString(), Who: who, status: Waiting}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errStopping
	}
	own, all := 0, 0 // not ended
	for _, other := range b.builds {
		if other.Who == who && other.Template == ask.Template && other.status == Waiting {
			b.callOffLocked(other, errReplaced)
		}
		if !other.ended.IsZero() {
			continue
		}
		if all++; other.Who == who {
			own++
		}
	}
	if own >= maxUnended || all >= maxAll {
		return nil, ErrBusy
	}
	b.builds = append(b.builds, bd)
	bd.timer = time.AfterFunc(maxWait, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if bd.status == Waiting {
			b.callOffLocked(bd, errWaited)
		}
	})
	return bd, nil
}

// Find returns the client's build of a template with the given id or, if id is empty, the waiting
// build.
func (b *Builder) Find(who, template, id string) (*Build, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, bd := range b.builds {
		if bd.Who == who && bd.Template == template && (bd.ID == id || id == "" && bd.status == Waiting) {
			return bd, nil
		}
	}
	return nil, ErrUnknown
}

// State returns the status of a build, and the reason if it failed.
func (b *Builder) State(bd *Build) (Status, Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bd.status, bd.reason
}

// Start starts a waiting build for the principal of the request with context ctx. The build
// continues after the request. It cancels builds of the template that the same client has started
// before.
func (b *Builder) Start(ctx context.Context, bd *Build, plan Plan) error {
	if err := plan.check(bd.Template); err != nil {
		return err
	}
	for n, s := range plan.Steps {
		if s.isCopy() && !b.uploads.has(bd.ID, s.FilesHash) {
			return invalid.Errorf(fmt.Sprintf("steps[%d].filesHash", n), "%q: no files were sent for it", s.FilesHash)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if bd.status != Waiting || b.closed {
		return ErrStarted
	}
	for _, other := range b.builds {
		if other == bd || other.Template != bd.Template || other.status != Building {
			continue
		}
		if other.Who != bd.Who {
			return ErrTaken
		}
		b.callOffLocked(other, errReplaced)
	}
	bd.timer.Stop()
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	bd.cancel, bd.status = cancel, Building
	b.running.Go(func() {
		defer cancel(nil)
		b.finish(bd, b.run(run, bd, plan))
	})
	return nil
}

// finish ends a build that was carried out. After the end it removes the archives once more,
// because an upload may have stored one in the meantime. An upload checks for the end only after it
// has stored its archive.
func (b *Builder) finish(bd *Build, err error) {
	b.uploads.drop(bd)
	b.mu.Lock()
	b.endLocked(bd, err)
	b.mu.Unlock()
	b.uploads.drop(bd)
}

// callOffLocked cancels a running build, and ends a waiting one.
func (b *Builder) callOffLocked(bd *Build, why error) {
	switch bd.status {
	case Building:
		bd.cancel(why)
	case Waiting:
		bd.timer.Stop()
		b.running.Go(func() { b.uploads.drop(bd) })
		b.endLocked(bd, &stepError{Base, why})
	}
}

// endLocked records the end of a build, and forgets the client's oldest ended builds.
func (b *Builder) endLocked(bd *Build, err error) {
	bd.status, bd.ended = Ready, time.Now()
	if err != nil {
		var at *stepError
		if !errors.As(err, &at) {
			at = &stepError{Finalize, err}
		}
		bd.status, bd.reason = Failed, Reason{at.step, printable(at.err.Error())}
		bd.Log.add(levelError, at.step, bd.reason.Message)
		logged := at.err
		if of := (*ownError)(nil); errors.As(logged, &of) {
			logged = errOwn
			if errors.Is(of, syscall.ENOSPC) {
				logged = bake.ErrFull
			}
		}
		b.cfg.Log.Info("build of a template has failed", "template", bd.Template, "who", bd.Who, "step", at.step, "error",
			logged)
	}
	bd.timer = time.AfterFunc(keepEnded, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.builds = slices.DeleteFunc(b.builds, func(other *Build) bool { return other == bd })
	})
	ended := 0
	for n := len(b.builds) - 1; n >= 0; n-- {
		if other := b.builds[n]; other.Who != bd.Who || other.ended.IsZero() {
			continue
		}
		if ended++; ended > maxEnded {
			b.builds[n].timer.Stop()
			b.builds = slices.Delete(b.builds, n, n+1)
		}
	}
}

// stepError is an error with the step that caused it.
type stepError struct {
	step string
	err  error
}

// ownError is an error of a step from the client. Its text may contain a secret from that step, so
// it is for the client only.
type ownError struct{ error }

func (e *ownError) Unwrap() error { return e.error }

// errOwn replaces an *ownError in the daemon's log.
var errOwn = errors.New("the step has failed: the log of the build says why")

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }
