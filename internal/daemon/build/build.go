// Package build executes plans. A plan lists the steps that a Dockerfile or a recipe asks for
// (package plan). A step forks the snapshot of the previous step, does its work in that sandbox
// through the agent, and branches the sandbox. The next step starts from the new snapshot, and the
// snapshot of the last step is the result. A later build with the same step finds the snapshot by
// its key and skips the step. Snapshots of steps are ordinary snapshots with tags that begin with
// "step-". Independent stages run concurrently.
//
// A step either has a snapshot or leaves nothing. If the client disconnects or the daemon is
// killed, only the steps that are running are lost. The next build runs these steps again, and
// skips those that have snapshots. Sandboxes of builds carry a mark. By this mark the next daemon
// finds them and kills them.
//
// Data from clients is interpreted in the guest; the host only stores files of the build context by
// digest, and decompresses archives. The package does not speak HTTP, and does not decide who may
// build.
package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/registry"
)

// Bounds on builds: on their number, and on the time for a build and for each of its commands.
const (
	maxBuilds  = 4 // builds that run at the same time
	maxBuild   = 4 * time.Hour
	maxCommand = 2 * time.Hour
	maxBases   = 256 // bases whose settings are cached
)

// Config holds the parameters of a Builder.
type Config struct {
	Manager *sandbox.Manager
	Baker   *bake.Baker
	Boot    Boot     // converts container images
	Place   Place    // waits for a place for a builder VM
	Image   Registry // looks up container images
	Dir     string   // directory for files of builds; used by this Builder only
	Log     *slog.Logger

	Longest time.Duration // time limit of a build; 0 means 4 hours

	// Quiet is how long a guest rests before its last snapshot; 0 means agentproto.QuietTime. Tests
	// whose guests are processes need no rest.
	Quiet time.Duration
}

// Request is a build to execute.
type Request struct {
	Who string // name of the client
	// True if the client has all rights. If false, the steps are cached for this client alone, and
	// FROM does not accept the result.
	Admin   bool
	Tag     string
	Replace bool
	NoCache bool
	Encrypt bool   // encrypt the result
	Login   *Login // credentials for the registry of the image that BuildFrom begins with; nil: see Logins

	// Logins are the client's credentials. The keys are names of registries, as registry.Name
	// returns them. Credentials are sent only to their own registry, and are in no key, file or
	// message of a build. For registries without an entry, the stored logins of the daemon's user
	// are used.
	Logins map[string]Login

	Recipe     *Recipe            // nil if a Dockerfile is built
	Dockerfile dockerfile.Request // Files and Base are not set; for an empty Dockerfile, see BuildFrom
	VCPUs      uint32             // vCPUs of a VM that boots from an image; 0 means 1
	MemoryMiB  uint64             // memory of a VM that boots from an image; 0 means 1024
	DiskMiB    int                // disk of a VM that boots from an image; 0 means 8192

	// Secrets for RUN --mount=type=secret, by id. They are in no key, file or message of a build.
	Secrets map[string][]byte
}

// Bounds on secrets.
const (
	maxSecrets = apiv1.MaxBuildSecrets
	maxSecret  = apiv1.MaxBuildSecret // bytes
)

// login returns the credentials for the registry of an image. If it returns nil, the credentials
// that `docker login` has stored for the daemon's user are used, if there are any.
func (r *Request) login(reference string) *Login {
	if l, ok := r.Logins[registry.Of(reference)]; ok {
		return &l
	}
	return r.Login
}

// Check returns an error if a request is invalid, as an *invalid.Error.
func (r *Request) Check() error {
	if err := r.check(); err != nil {
		return err
	}
	return r.checkSource()
}

func (r *Request) check() error {
	if err := snapshot.CheckTag(r.Tag); err != nil {
		return &invalid.Error{Field: "tag", Reason: err.Error()}
	}
	switch {
	case snapshot.IsStepTag(r.Tag):
		return invalid.Errorf("tag", "%q: such tags are for steps of builds: choose another", r.Tag)
	case r.VCPUs > vm.MaxVCPUs:
		return invalid.Errorf("vcpus", "%d: want at most %d", r.VCPUs, vm.MaxVCPUs)
	case r.MemoryMiB > vm.MaxMemoryBytes>>20:
		return invalid.Errorf("memory_mib", "%d: want at most %d", r.MemoryMiB, vm.MaxMemoryBytes>>20)
	case r.DiskMiB < 0 || r.DiskMiB > maxDiskMiB:
		return invalid.Errorf("disk_mib", "%d: want at most %d", r.DiskMiB, maxDiskMiB)
	case len(r.Secrets) > maxSecrets:
		return invalid.Errorf("secrets", "there are %d: want at most %d", len(r.Secrets), maxSecrets)
	}
	for id, secret := range r.Secrets {
		if len(secret) > maxSecret {
			return invalid.Errorf("secrets", "%.100q: %d bytes: want at most %d", id, len(secret), maxSecret)
		}
	}
	return nil
}

// maxDiskMiB is the maximum disk size of a VM that boots from an image, in MiB.
const maxDiskMiB = 1 << 20

// States of steps.
const (
	Started = "started"
	Cached  = "cached"
	Done    = "done"
	Failed  = "failed"
)

// Observer receives the progress of a build. Its methods are called concurrently.
type Observer interface {
	Planned(p *plan.Plan)
	Step(number int, state string, took time.Duration)
	Output(number int, line string)
}

// Result counts the steps of a build.
type Result struct {
	Cached, Run int // how many steps were skipped, and how many were run
}

// Builder executes builds. Its methods may be called concurrently.
type Builder struct {
	cfg      Config
	places   *gate.Gate
	lists    *gate.Gate // one place for each MiB of memory; see maxListsMiB
	contents *gate.Gate // one place for each MiB of the disk; see maxContentsMiB

	mu    sync.Mutex
	bases map[string]dockerfile.Config // settings of snapshots, by id
	busy  map[string]bool              // keys of steps that builds execute, and tags that builds make

	pinned map[string]int // number of running builds that need a step, by the step's tag
	held   map[string]int // see Hold
}

// Hold records that a bake needs a root file system, until the returned function is called. The
// parameter rootfs is the path of this file system, and may be empty. While the bake waits, no
// snapshot shows that the file system is in use.
func (b *Builder) Hold(rootfs string) (release func()) {
	add := func(n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.held[rootfs] += n; b.held[rootfs] == 0 {
			delete(b.held, rootfs)
		}
	}
	add(1)
	return func() { add(-1) }
}

// Held returns the paths of the root file systems that bakes need.
func (b *Builder) Held() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.held))
}

// New returns a Builder. It kills the sandboxes of an earlier daemon's builds.
func New(cfg Config) (*Builder, error) {
	for _, i := range cfg.Manager.List() {
		if !IsBuild(i) {
			continue
		}
		if err := cfg.Manager.Kill(i.ID); err != nil {
			cfg.Log.Warn("end the sandbox of a build of an earlier daemon", "sandbox", i.ID, "error", err)
		}
	}
	if err := os.RemoveAll(filepath.Join(cfg.Dir, "contexts")); err != nil { // contexts of an earlier daemon's builds
		return nil, fmt.Errorf("open the store of builds: %w", err)
	}
	for _, name := range []string{"contexts", "caches", "results", "announced", "used"} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, name), 0o700); err != nil {
			return nil, fmt.Errorf("open the store of builds: %w", err)
		}
	}
	parts, err := filepath.Glob(filepath.Join(cfg.Dir, "caches", ".*")) // temporary files that an earlier daemon has left
	for _, part := range parts {
		err = errors.Join(err, os.Remove(part))
	}
	for _, name := range []string{"results", "announced", "used"} {
		err = errors.Join(err, atomicfile.Clean(filepath.Join(cfg.Dir, name)))
	}
	if err != nil {
		return nil, fmt.Errorf("open the store of builds: %w", err)
	}
	b := &Builder{cfg: cfg, places: gate.New(maxBuilds), lists: gate.New(maxListsMiB),
		contents: gate.New(maxContentsMiB), bases: make(map[string]dockerfile.Config), busy: make(map[string]bool),
		pinned: make(map[string]int), held: make(map[string]int)}
	if err := b.repair(); err != nil {
		return nil, fmt.Errorf("open the store of builds: %w", err)
	}
	return b, nil
}

// ErrBusy means that too many builds are running.
var ErrBusy = errors.New("too many builds are under way: wait until one has ended")

// Enter reserves a place for a build of a client. The returned function releases the place.
func (b *Builder) Enter(who string) (leave func(), err error) {
	if leave, err = b.places.Enter(owner.FairShare(who, maxBuilds)); err != nil {
		return nil, ErrBusy
	}
	return leave, nil
}

// Wait is like Enter, but for a build by BuildFrom. It waits for a place until ctx is done. Builds
// of Dockerfiles do not wait, so builds by BuildFrom leave one place for them. The builds of one
// client leave one place for other clients.
func (b *Builder) Wait(ctx context.Context, who string) (leave func(), err error) {
	all := gate.Share{Key: "templates", Most: gate.Fair(maxBuilds)}
	own := owner.FairShare(who, all.Most)
	own.Key = "templates of " + own.Key
	return b.places.Wait(ctx, owner.FairShare(who, maxBuilds), own, all)
}

// StepError is the failure of a step.
type StepError struct {
	Name string // name of the step
	Line int    // line of the Dockerfile; 0: none
	File string
	Err  error
}

// Error implements error.
func (e *StepError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Name, e.Err)
	}
	return fmt.Sprintf("%s:%d: %s: %v", e.File, e.Line, e.Name, e.Err)
}

// Unwrap returns the error without the step.
func (e *StepError) Unwrap() error { return e.Err }

// Limit returns a context with the time limit of a build that begins now. BuildFrom applies the
// same limit to its own part of the build. A caller that reads archives for BuildFrom calls Limit
// before it reads them.
func (b *Builder) Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	longest := cmp.Or(b.cfg.Longest, maxBuild)
	return context.WithTimeoutCause(ctx, longest, fmt.Errorf("the build was not done after %v", longest))
}

// Build reads a Dockerfile or a recipe and executes it. The caller closes the build context
// (files). The error is a *dockerfile.Error if the Dockerfile is at fault, and a *StepError if a
// step failed.
func (b *Builder) Build(ctx context.Context, req Request, files *Context, o Observer) (Result, error) {
	if err := req.Check(); err != nil {
		return Result{}, err
	}
	if err := owner.Within(ctx, false, "a build"); err != nil {
		return Result{}, err
	}
	free, err := b.claim("tag " + req.Tag)
	if err != nil {
		return Result{}, err
	}
	defer free()
	if req.Recipe != nil {
		return b.build(ctx, req, files, func(ctx context.Context) (*plan.Plan, error) {
			return b.readRecipe(ctx, req.Recipe, files.Files())
		}, o)
	}
	req.Dockerfile.Files = files.Files()
	req.Dockerfile.Base = func(ctx context.Context, name string) (plan.Base, dockerfile.Config, error) {
		return b.base(ctx, req, name)
	}
	return b.build(ctx, req, files, func(ctx context.Context) (*plan.Plan, error) {
		return dockerfile.Read(ctx, req.Dockerfile)
	}, o)
}

// BuildFrom executes the plan that read() returns, instead of a Dockerfile. It waits for other
// builds of the same tag. The caller closes the plan's build context (files). The error is a
// *StepError if a step failed.
func (b *Builder) BuildFrom(ctx context.Context, req Request, files *Context,
	read func(context.Context) (*plan.Plan, error), o Observer,
) (Result, error) {
	if err := req.check(); err != nil {
		return Result{}, err
	}
	free, err := b.await(ctx, "tag "+req.Tag)
	if err != nil {
		return Result{}, causeOf(ctx, err)
	}
	defer free()
	return b.build(ctx, req, files, read, o)
}

func (b *Builder) build(ctx context.Context, req Request, files *Context,
	read func(context.Context) (*plan.Plan, error), o Observer,
) (Result, error) {
	ctx, cancel := b.Limit(ctx)
	defer cancel()
	p, err := read(ctx)
	if err != nil {
		return Result{}, causeOf(ctx, err)
	}
	o.Planned(p)
	r, err := b.carryOut(ctx, req, p, files, o)
	return r, causeOf(ctx, err)
}

// claim reserves a name that only one build may work on at a time. The returned function releases
// the name.
func (b *Builder) claim(what string) (free func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[what] {
		return nil, fmt.Errorf("%s: %w", what, ErrTaken)
	}
	b.busy[what] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.busy, what)
	}, nil
}

// ErrTaken means that another build is making a snapshot with the same tag.
var ErrTaken = errors.New("another build is at it")

// causeOf returns err or, if ctx was cancelled with a cause, this cause. In that case err is often
// only a consequence of the cancellation.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
