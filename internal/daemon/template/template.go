// Package template builds templates for E2B's SDKs. A template is a snapshot, made from another
// snapshot or from a container image by steps like the steps of a Dockerfile.
//
// The package converts the description of a template to a plan, which package daemon/build
// executes. A step whose snapshot exists is not run again, and a step that is killed leaves nothing
// behind. The plan contains the variables, the user and the directory of each step, so the package
// first asks a guest for the variables, the user and the directory of the base.
//
// The package remembers an ended build for an hour (keepEnded). It remembers at most maxEnded ended
// builds of each client. When the daemon stops, it forgets all builds. A client's archives are
// removed when their build has ended. Package e2b speaks HTTP and decides which client may build.
// Sizes are in bytes unless a name says otherwise.
package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/loglimit"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Bounds on builds. maxWait is longer than an hour, the time that the SDKs allow for each upload.
const (
	maxUnended = 16            // builds of one client that have not ended
	maxAll     = 64            // builds of all clients that have not ended
	maxEnded   = 16            // ended builds of one client that are remembered
	keepEnded  = time.Hour     // how long an ended build, with its log, is remembered
	maxWait    = 2 * time.Hour // maximum time between the request and the start
)

// Config holds the parameters of a Builder.
type Config struct {
	Manager *sandbox.Manager
	Builds  *build.Builder
	Dir     string // directory for archives; used only by this Builder
	Log     *slog.Logger
}

// Status is the state of a build, in E2B's words.
type Status string

// The statuses, in the order in which a build has them. A build ends as ready or failed.
const (
	Waiting  Status = "waiting"
	Building Status = "building"
	Ready    Status = "ready"
	Failed   Status = "error"
)

// Reason says why a build failed.
type Reason struct {
	Step    string // number of the failed step, from 1, or Base or Finalize
	Message string
}

// Values of Reason.Step for the phases before and after the steps.
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
	Template  string // tag of the snapshot to make
	CPUs      uint32 // 0: as in the base
	MemoryMiB uint64 // 0: as in the base
	FreeMiB   int    // free disk space; used for a base from a container image

	Made func() error // called when the snapshot exists; an error fails the build; nil: nothing is called
}

// Build is one build.
type Build struct {
	Ask
	ID  string // a UUID
	Who string // Principal.Who of the client
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
	endAll  func() // kills the sandboxes of all builds
	uploads *uploads
	running sync.WaitGroup

	mu     sync.Mutex
	builds []*Build // oldest first
	closed bool
	lines  *loglimit.Lines // limits the log's lines about failed builds, because a client can start any number of them
}

func newLines() *loglimit.Lines { return loglimit.New(loglimit.PerSecond, loglimit.AtOnce) }

// New returns a Builder. It removes archives that an earlier daemon has left.
func New(cfg Config) (*Builder, error) {
	u, err := newUploads(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return &Builder{cfg: cfg, endAll: cfg.Builds.EndSandboxes, uploads: u, lines: newLines()}, nil
}

// closeWait is how long Close waits for builds: first for the cancelled builds, and then again
// after it has killed their sandboxes.
const closeWait = 10 * time.Second

// Close cancels all builds and waits until they have ended. If builds take longer than closeWait,
// it kills their sandboxes. If they have still not ended after another closeWait, Close returns
// nevertheless, because a build must not delay the daemon's shutdown.
func (b *Builder) Close() {
	b.mu.Lock()
	b.closed = true
	for _, bd := range b.builds {
		b.callOffLocked(bd, errStopping)
	}
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() { b.running.Wait(); close(ended) }()
	for _, next := range []func(){b.endAll, func() { b.cfg.Log.Error("builds of templates do not end") }} {
		select {
		case <-ended:
			return
		case <-time.After(closeWait):
			next()
		}
	}
}

// Request registers a build for the client with the given name. The new build waits until Start. It
// replaces a waiting build of the same template.
func (b *Builder) Request(who string, ask Ask) (*Build, error) {
	bd := &Build{Ask: ask, ID: uuid.NewString(), Who: who, status: Waiting}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errStopping
	}
	own, all := 0, 0 // builds that have not ended
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

// Find returns the template's build with the given id, if the client has requested that build. If
// id is empty, Find returns the client's waiting build of the template.
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

// Start starts a waiting build with the rights of the principal in ctx. The build continues after
// ctx has ended. Start cancels the client's earlier builds of the same template.
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
		b.finish(bd, b.guarded(func() error {
			err := b.run(run, bd, plan)
			if err == nil && bd.Made != nil {
				err = bd.Made()
			}
			return err
		}))
	})
	return nil
}

// errPanic is the error of a build that panicked.
var errPanic = errors.New("internal error: the daemon's log has the details")

// guarded calls run, and converts a panic to an error. A build reads a client's data in a goroutine
// of its own, where a panic would crash the daemon.
func (b *Builder) guarded(run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			b.cfg.Log.Error("panic in a build of a template", "error", p, "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	return run()
}

// finish ends a build that was carried out. It removes the build's archives a second time after it
// has recorded the end. An upload stores its archive before it checks for the end, so an archive
// may have been stored after the first removal.
func (b *Builder) finish(bd *Build, err error) {
	b.uploads.drop(bd)
	b.mu.Lock()
	b.endLocked(bd, err)
	b.mu.Unlock()
	b.uploads.drop(bd)
}

// callOffLocked cancels a build. A waiting build ends at once, and a running build ends later.
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

// endLocked records the end of a build, and forgets the client's oldest ended builds so that at
// most maxEnded remain.
func (b *Builder) endLocked(bd *Build, err error) {
	ran := bd.status == Building
	bd.status, bd.ended = Ready, time.Now()
	if err != nil {
		var at *stepError
		if !errors.As(err, &at) {
			at = &stepError{Finalize, err}
		}
		bd.status, bd.reason = Failed, Reason{at.step, printable(at.err.Error())}
		bd.Log.add(levelError, at.step, bd.reason.Message)
		if ran { // other builds are not logged: a client can request and cancel any number of them
			b.logFailureLocked(bd, at)
		}
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
			b.builds = slices.Concat(b.builds[:n], b.builds[n+1:]) // a caller may still loop over the old slice
		}
	}
}

// logFailureLocked writes the failure of a build to the daemon's log, unless there are too many
// such lines.
func (b *Builder) logFailureLocked(bd *Build, at *stepError) {
	logged := at.err
	if of := (*ownError)(nil); errors.As(logged, &of) {
		logged = errOwn
		if errors.Is(of, syscall.ENOSPC) {
			logged = bake.ErrFull
		}
	}
	b.lines.Log(b.cfg.Log, slog.LevelInfo, "build of a template has failed", "template", bd.Template, "who", bd.Who,
		"step", at.step, "error", logged)
}

// stepError is an error with the step that caused it.
type stepError struct {
	step string
	err  error
}

// ownError is an error of a step. The error may quote the step, and the step may contain a secret,
// so only the client receives the error's text.
type ownError struct{ error }

func (e *ownError) Unwrap() error { return e.error }

// errOwn replaces an *ownError in the daemon's log.
var errOwn = errors.New("the step has failed: the log of the build says why")

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }
