// Package template builds templates as E2B's SDKs have them built: snapshots that are made of
// another one, or of a container image, by steps like those of a Dockerfile.
//
// The package reads such a template into a plan, which package daemon/build carries out: steps that have
// a snapshot are not carried out again, and one that is killed in the middle leaves nothing. The variables,
// user and directory of the steps are known when the plan is made: those of what the template is made of
// are asked of a guest first.
//
// Builds are known by their makers, for a time and while the daemon runs; the archives that the client has
// sent are removed when the build has ended. The package does not speak HTTP, and decides nothing about who
// may build; that and the JSON are package e2b's. Sizes are in bytes unless a name says otherwise.
package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Bounds on builds. That on waiting is longer than the hour that the SDKs give each upload.
const (
	maxUnended = 16            // of one client
	maxAll     = 64            // of all clients that have not ended
	maxEnded   = 16            // that are remembered, of one client
	maxWait    = 2 * time.Hour // for the start that follows the request
)

// Config is what a Builder works with.
type Config struct {
	Manager *sandbox.Manager
	Builds  *build.Builder
	Dir     string // of archives that clients send; of this Builder alone
	Log     *slog.Logger
}

// Status is how far a build is, in E2B's words.
type Status string

// The statuses, in their order; a build ends ready or failed.
const (
	Waiting  Status = "waiting"
	Building Status = "building"
	Ready    Status = "ready"
	Failed   Status = "error"
)

// Reason says why a build has failed.
type Reason struct {
	Step    string // its number, from 1, or Base or Finalize
	Message string
}

// What a build does before and after its steps.
const (
	Base     = "base"
	Finalize = "finalize"
)

// Errors of a Builder, besides *invalid.Error.
var (
	ErrUnknown = errors.New("no such build: builds are forgotten when the daemon ends, and some time after they have ended")
	ErrStarted = errors.New("the build is not waiting to be started")
	ErrBusy    = errors.New("too many builds are under way: wait until some have ended")
	ErrTaken   = errors.New("another client is building this template")
)

// Why builds are called off.
var (
	errReplaced = errors.New("another build of the template was begun")
	errWaited   = fmt.Errorf("it was not started within %v", maxWait)
	errStopping = errors.New("the daemon is ending")
)

// Ask is what a build is to make.
type Ask struct {
	Template  string // a snapshot's tag
	CPUs      uint32 // 0: those of what it is made of
	MemoryMiB uint64 // likewise
	FreeMiB   int    // on the disk, of a container image
}

// Build is one build.
type Build struct {
	Ask
	ID  string // a UUID
	Who string // has asked for it, as auth.Principal says it
	Log Log

	// What follows is guarded by Builder.mu.
	status Status
	reason Reason
	ended  time.Time
	cancel context.CancelCauseFunc // of one that is started
	timer  *time.Timer             // of one that is not
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

// New returns a Builder, and removes the archives for builds of an earlier daemon.
func New(cfg Config) (*Builder, error) {
	u, err := newUploads(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return &Builder{cfg: cfg, uploads: u}, nil
}

// Close calls all builds off, and waits until nothing of them is left.
func (b *Builder) Close() {
	b.mu.Lock()
	b.closed = true
	for _, bd := range b.builds {
		b.callOffLocked(bd, errStopping)
	}
	b.mu.Unlock()
	b.running.Wait()
}

// Request takes up a build for who asks, to be started. It takes the place of one of the same
// template that is not started.
func (b *Builder) Request(who string, ask Ask) (*Build, error) {
	bd := &Build{Ask: ask, ID: uuid.NewString(), Who: who, status: Waiting}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errStopping
	}
	own, all := 0, 0 // that have not ended
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

// Find returns a build of a template that who has asked for, by its id, or where that is empty the
// one that is to be started.
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

// State returns how far a build is, and why it has failed if it has.
func (b *Builder) State(bd *Build) (Status, Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bd.status, bd.reason
}

// Start begins to carry out a build that waits, in the name of who makes the request of ctx. It
// goes on when that has ended. Builds of the template that the same client has started are called
// off.
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

// finish ends a build that was carried out. It removes the archives once more when the build has ended: an
// upload that was not done before may have stored one since, and looks for the end itself only after that.
func (b *Builder) finish(bd *Build, err error) {
	b.uploads.drop(bd)
	b.mu.Lock()
	b.endLocked(bd, err)
	b.mu.Unlock()
	b.uploads.drop(bd)
}

// callOffLocked ends a build, or has it end itself.
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

// endLocked notes how a build has ended, and forgets the oldest of its client that have.
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
	ended := 0
	for n := len(b.builds) - 1; n >= 0; n-- {
		if other := b.builds[n]; other.Who != bd.Who || other.ended.IsZero() {
			continue
		}
		if ended++; ended > maxEnded {
			b.builds = append(b.builds[:n], b.builds[n+1:]...)
		}
	}
}

// stepError is an error with what was being done.
type stepError struct {
	step string
	err  error
}

// ownError is an error of a step that the client gave. It may have a part of that step in it, which
// may be a secret, and so is for the client alone.
type ownError struct{ error }

func (e *ownError) Unwrap() error { return e.error }

// errOwn stands for an *ownError in the daemon's log.
var errOwn = errors.New("the step has failed: the log of the build says why")

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }
