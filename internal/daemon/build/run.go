package build

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/imagevm"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/pause"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// work is a running build.
type work struct {
	b     *Builder
	req   Request
	plan  *plan.Plan
	keys  []string
	files *Context
	o     Observer
	steps []progress // progress of each step, by number

	memory []bool // whether a step's snapshot has memory, by the number of the step; see plan.Plan.Memory

	mu    sync.Mutex
	idle  []idle // idle sandboxes, in the order in which leave() kept them
	count Result

	within string // prefix of the tags of steps: the client's label prefix, or empty
}

// progress is the state of one step in a build.
type progress struct {
	once   sync.Once
	err    error
	cached sync.Once // reports the step to the observer as cached
}

// tagOf returns the tag of a step's snapshot.
func (w *work) tagOf(i int) string { return snapshot.StepTag(w.within, w.keys[i]) }

// newWork computes the keys of a plan. If a client is limited to a tag prefix, the tags of its
// steps have this prefix.
func (b *Builder) newWork(ctx context.Context, req Request, p *plan.Plan, files *Context, o Observer) (*work, error) {
	agent := fmt.Sprint("agent ", agentproto.Version)
	if !req.Admin { // a client can change the sandboxes of its builds, so its steps are cached for it alone
		agent += " of " + req.Who
	}
	keys, err := p.Keys(agent, fmt.Sprint("snapshot ", snapshot.Version))
	if err != nil {
		return nil, err
	}
	w := &work{b: b, req: req, plan: p, keys: keys, files: files, o: o, steps: make([]progress, len(p.Steps)),
		memory: p.Memory()}
	if limit := owner.PrefixOf(ctx); limit != "" {
		w.within = limit.Tags()
	}
	return w, nil
}

func (b *Builder) carryOut(ctx context.Context, req Request, p *plan.Plan, files *Context, o Observer) (Result, error) {
	w, err := b.newWork(ctx, req, p, files, o)
	if err != nil {
		return Result{}, err
	}
	defer b.Trim(maxSteps) // runs when no sandbox uses the snapshots any more
	defer w.pin()()
	defer w.endIdle()
	if w.isDone() {
		w.isCached(p.Result)
		return w.count, nil
	}
	if req.Encrypt { // without this, the last step would fail, after all other steps have run
		if err := b.cfg.Manager.Snapshots().CanEncrypt(req.Tag, !w.memory[p.Result], false); err != nil {
			return Result{}, err
		}
	}
	if d, err := b.cfg.Manager.Snapshots().Detail(req.Tag); err == nil && (!req.Replace || d.Writing) {
		return Result{}, &store.ExistsError{Tag: req.Tag, InFlight: d.Writing}
	}
	ctx, cancel := context.WithCancel(ctx) // a failed step cancels the other steps
	defer cancel()
	err = w.ensure(ctx, cancel, p.Result)
	return w.count, err
}

// ensure makes the snapshot of a step if it does not exist. In one build, each step is made only
// once.
func (w *work) ensure(ctx context.Context, cancel func(), i int) error {
	w.steps[i].once.Do(func() {
		defer func() { // each step has its own goroutine, where a panic would crash the daemon
			if p := recover(); p != nil {
				w.b.cfg.Log.Error("panic in a step of a build", "error", p, "stack", string(debug.Stack()))
				w.steps[i].err = errPanic
			}
			if w.steps[i].err != nil {
				cancel()
			}
		}()
		w.steps[i].err = w.provide(ctx, cancel, i)
	})
	return w.steps[i].err
}

// errPanic is the error of a step that panicked.
var errPanic = errors.New("internal error: the daemon's log has the details")

func (w *work) provide(ctx context.Context, cancel func(), i int) error {
	s := &w.plan.Steps[i]
	if s.Base != nil && !s.Base.Boots() {
		w.isCached(i)
		return w.failed(i, w.b.there(s.Base))
	}
	free, err := w.b.await(ctx, "step "+w.tagOf(i))
	if err != nil {
		return err
	}
	if w.isThere(i) {
		free()
		w.isCached(i)
		return nil
	}
	free() // other builds may claim the step while this build makes the snapshots that the step needs
	if err := w.ensureNeeds(ctx, cancel, i); err != nil {
		return err
	}
	begin := time.Now()
	started := false
	start := func() {
		if !started {
			started = true
			w.o.Step(i, Started, 0)
		}
	}
	there, err := w.attempt(ctx, i, nil, start)
	if errors.Is(err, imagevm.ErrNoPlace) {
		// The step is not claimed while this client waits. So another client that has a builder VM
		// can execute the step.
		w.o.Output(i, "wait for a builder VM")
		var leave func()
		if leave, err = w.b.cfg.Place(ctx, w.req.Who); err == nil {
			leave = sync.OnceFunc(leave)
			defer leave()
			there, err = w.attempt(ctx, i, leave, start)
		}
	}
	switch {
	case err != nil && !started:
		return err
	case err != nil:
		w.o.Step(i, Failed, time.Since(begin))
		return w.failed(i, err)
	case there:
		w.isCached(i)
		return nil
	}
	w.o.Step(i, Done, time.Since(begin))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count.Run++
	return nil
}

// attempt executes step i if no other build has made its snapshot. If place is not nil, a place is
// reserved for the step's builder VM, and attempt calls place() to give this place back. It calls
// start() before it executes the step.
func (w *work) attempt(ctx context.Context, i int, place, start func()) (there bool, err error) {
	free, err := w.b.await(ctx, "step "+w.tagOf(i))
	if err != nil {
		return false, err
	}
	defer free()
	if w.isThere(i) {
		return true, nil
	}
	start()
	if w.plan.Steps[i].Base != nil {
		return false, w.bake(ctx, i, place)
	}
	return false, w.step(ctx, i)
}

func (w *work) failed(i int, err error) error {
	var already *StepError
	if err == nil || errors.As(err, &already) {
		return err
	}
	s := &w.plan.Steps[i]
	return &StepError{Name: s.Name, Line: s.Line, File: w.req.Dockerfile.Name, Err: err}
}

// ensureNeeds makes the snapshots that a step needs, concurrently.
func (w *work) ensureNeeds(ctx context.Context, cancel func(), i int) error {
	s := &w.plan.Steps[i]
	needs := s.Needs()
	if s.From >= 0 {
		needs = append(needs, s.From)
	}
	errs := make([]error, len(needs))
	var all sync.WaitGroup
	for n, need := range needs {
		all.Go(func() { errs[n] = w.ensure(ctx, cancel, need) })
	}
	all.Wait()
	for _, err := range errs { // find the error that cancelled the other steps
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return errors.Join(errs...)
}

// awaitEvery is how often a build checks whether another build has finished a step.
const awaitEvery = 100 * time.Millisecond

// await is like claim, but waits until the name is free.
func (b *Builder) await(ctx context.Context, what string) (free func(), err error) {
	for {
		if free, err = b.claim(what); err == nil {
			return free, nil
		}
		if err := pause.For(ctx, awaitEvery); err != nil {
			return nil, err
		}
	}
}

// isThere reports whether the snapshot of a step can be used. The result, which is the last step's
// snapshot, is always made again.
func (w *work) isThere(i int) bool {
	s := &w.plan.Steps[i]
	if i == w.plan.Result || s.Base == nil && (w.req.NoCache || s.Force) {
		return false
	}
	d, err := w.b.cfg.Manager.Snapshots().Detail(w.tagOf(i))
	if err != nil || d.Writing || d.Damage != "" {
		return false
	}
	w.b.used(w.tagOf(i))
	return true
}

// isCached tells the observer that a step, and the steps it needs, did not have to run.
func (w *work) isCached(i int) {
	w.steps[i].cached.Do(func() {
		s := &w.plan.Steps[i]
		for _, n := range s.Needs() {
			w.isCached(n)
		}
		if s.From >= 0 {
			w.isCached(s.From)
		}
		w.o.Step(i, Cached, 0)
		w.mu.Lock()
		w.count.Cached++
		w.mu.Unlock()
	})
}

// bake makes the snapshot of a step that boots a container image, the files in Base.Boot, or the
// disk of another snapshot.
func (w *work) bake(ctx context.Context, i int, place func()) error {
	base := w.plan.Steps[i].Base
	var req bake.Request
	switch {
	case base.Boot != nil:
		req = bake.Request{Kernel: base.Boot.Kernel, Initrd: base.Boot.Initrd, Rootfs: base.Boot.Rootfs, Env: base.Boot.Env}
		if w.req.Recipe != nil {
			req.Ready = w.req.Recipe.Ready
		}
	case base.Image != "":
		from, err := w.b.cfg.Boot(ctx, Image{image.Pinned(base.Image, base.Digest), w.req.login(base.Image), base.DiskMiB,
			w.req.Who, place},
			func(stage string) { w.o.Output(i, stage) })
		if err != nil {
			return err
		}
		req = from
	default:
		if err := w.b.there(base); err != nil {
			return err
		}
		fork, err := requestOf(base.Snapshot)
		if err != nil {
			return err
		}
		from, release, err := tenancy.DiskOf(ctx, w.b.cfg.Manager, fork)
		if err != nil {
			return err
		}
		defer release()
		if err := w.b.there(base); err != nil { // again, because the tag may now name another snapshot
			return err
		}
		req.From, req.Foreign = from, !w.req.Admin
	}
	req.Client, req.Tag, req.VCPUs, req.MemoryMiB = w.req.Who, w.tagOf(i), base.VCPUs, base.MemoryMiB
	req.VolumeSlots = base.VolumeSlots
	w.o.Output(i, "boot")
	defer w.b.Hold(req.Rootfs)()
	made, err := w.b.cfg.Baker.Bake(ctx, req)
	for _, e := range made.Ready.Errors {
		w.o.Output(i, "in the guest: "+printable(e))
	}
	return err
}

// step executes a step in a sandbox and makes its snapshot. A sandbox that received a secret is not
// used for other steps.
func (w *work) step(ctx context.Context, i int) error {
	box, err := w.begin(ctx, i)
	if err != nil {
		return err
	}
	room, unwatch := w.b.whileRoom(ctx, box)
	defer unwatch()
	g := &guest{w: w, i: i, box: box, step: &w.plan.Steps[i]}
	err = w.b.cfg.Manager.Use(room, box, "build in", func(ctx context.Context, dial agentclient.DialFunc) error {
		if g.step.HasSecret() {
			if err := w.b.cfg.Manager.KeepSecret(ctx, box); err != nil {
				return err
			}
		}
		g.c = agentclient.New(dial)
		g.c.Quiet = cmp.Or(w.b.cfg.Quiet, g.c.Quiet)
		return g.do(ctx)
	})
	if err == nil {
		err = w.save(room, i, box, g.set)
	}
	if err == nil && !g.step.HasSecret() {
		w.leave(i, box)
		return nil
	}
	w.b.end(box)
	if cause := context.Cause(room); err != nil && errors.Is(cause, bake.ErrFull) {
		return cause
	}
	return err
}

// tag returns the tag of a step's snapshot. For a step that stands for an existing snapshot, tag
// returns that snapshot's own tag.
func (w *work) tag(i int) string {
	if base := w.plan.Steps[i].Base; base != nil && !base.Boots() {
		return base.Snapshot
	}
	return w.tagOf(i)
}

// endsAfter is added to the maximum build time. If a build has not deleted its sandbox by then, the
// daemon deletes the sandbox.
const endsAfter = 5 * time.Minute

func (b *Builder) fork(ctx context.Context, req sandbox.ForkRequest) (string, error) {
	req.NoHooks = true // hooks are for the sandboxes of clients
	made, err := b.cfg.Manager.Fork(ctx, req)
	if err != nil {
		return "", err
	}
	return made.Sandboxes[0].ID, nil
}

// forkOf forks the snapshot of step i for the step with the number next. If step i stands for an
// existing snapshot, forkOf checks that snapshot again, because its tag may now name another
// snapshot.
func (w *work) forkOf(ctx context.Context, i, next int) (string, error) {
	req, err := w.forkFor(next, w.tag(i))
	if err != nil {
		return "", err
	}
	box, err := w.b.fork(ctx, req)
	if base := w.plan.Steps[i].Base; err == nil && base != nil && !base.Boots() {
		if err = w.b.there(base); err != nil {
			w.b.end(box)
		}
	}
	return box, err
}

// requestOf returns the fork request for a sandbox of a build.
func requestOf(tag string) (sandbox.ForkRequest, error) {
	note, err := json.Marshal(mark{uuid.NewString()})
	return sandbox.ForkRequest{Tag: tag, N: 1, HostnamePrefix: "build", TTL: maxBuild + endsAfter, Annotation: note}, err
}

// mark is the annotation of a build's sandbox.
type mark struct {
	Build string `json:"build"`
}

// IsBuild reports whether a sandbox belongs to a build. It trusts the annotation, because clients
// cannot set one. Only package e2b also writes annotations, and it puts data from clients into
// fields below the first level.
func IsBuild(i sandbox.Info) bool {
	var m mark
	return len(i.Annotation) > 0 && json.Unmarshal(i.Annotation, &m) == nil && m.Build != ""
}

// EndSandboxes kills the sandboxes of all builds. Builds that wait for one of them then fail.
func (b *Builder) EndSandboxes() {
	for _, i := range b.cfg.Manager.List() {
		if IsBuild(i) {
			b.end(i.ID)
		}
	}
}

func (b *Builder) end(box string) {
	if err := b.cfg.Manager.Kill(box); err != nil {
		b.cfg.Log.Warn("end the sandbox of a build", "sandbox", box, "error", err)
	}
}

// roomInterval is how often a build checks whether its sandbox is paused because the disk is full.
const roomInterval = time.Second

// whileRoom returns a context. If a sandbox is paused because the disk is full, the context is
// cancelled, with bake.ErrFull as its cause.
func (b *Builder) whileRoom(ctx context.Context, box string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for pause.For(ctx, roomInterval) == nil {
			if s, err := b.cfg.Manager.Get(box); err == nil && s.Info().DiskFull {
				cancel(bake.ErrFull)
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// saveAgain is a pause. If too many snapshots are being made, a build tries again after this pause.
const saveAgain = time.Second

// save makes the snapshot of a step, with the defaults that the step has set in the guest.
func (w *work) save(ctx context.Context, i int, box string, set snapshot.Defaults) error {
	req := sandbox.BranchRequest{Tag: w.tagOf(i), Step: true, Mode: vm.BranchDiff, Template: true, Replace: true,
		NoHooks:  true,
		Defaults: set}
	if !w.memory[i] {
		req.Mode = vm.BranchDisk
	}
	if i == w.plan.Result {
		req.Tag, req.Step, req.Replace, req.Encrypt = w.req.Tag, false, w.req.Replace, w.req.Encrypt
		if err := w.announce(box); err != nil {
			return err
		}
	}
	for {
		_, err := w.b.cfg.Manager.Branch(ctx, box, req)
		if err == nil && i == w.plan.Result {
			return w.done()
		}
		if admit.IsBusy(err) {
			if err = pause.For(ctx, saveAgain); err == nil {
				continue
			}
		}
		if i == w.plan.Result {
			w.retract()
		}
		return err
	}
}
