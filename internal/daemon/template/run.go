package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// mark is what is kept with the sandbox of a build.
type mark struct {
	Build string `json:"build"`
}

// IsBuild reports whether a sandbox is that of a build, which nobody has asked for as such. It believes
// the annotation: no client can choose one. Besides this package only package e2b writes them, with
// what clients give in fields below the first level.
func IsBuild(i sandbox.Info) bool {
	var m mark
	return len(i.Annotation) > 0 && json.Unmarshal(i.Annotation, &m) == nil && m.Build != ""
}

// Mark returns the annotation of a build's sandbox, by which IsBuild knows it and New ends it.
func Mark(build string) (json.RawMessage, error) { return json.Marshal(mark{build}) }

// run carries out a build that was started. An error is a *stepError.
func (b *Builder) run(ctx context.Context, bd *Build, plan Plan) error {
	ctx, cancel := context.WithTimeoutCause(ctx, maxBuild, errTooLong)
	defer cancel()
	w := &work{b: b, bd: bd, plan: plan, step: Base}
	if err := w.build(ctx); err != nil {
		return &stepError{w.step, causeOf(ctx, err)}
	}
	return nil
}

// causeOf prefers what has ended a context to what came of it, which says less.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// work is a build on its way.
type work struct {
	b     *Builder
	bd    *Build
	plan  Plan
	step  string // what is being done
	shell string // of the guest

	unpacked int64 // bytes of archives, without their compression
}

func (w *work) say(format string, args ...any) {
	w.bd.Log.add(levelInfo, w.step, fmt.Sprintf(format, args...))
}

// build makes the template.
func (w *work) build(ctx context.Context) error {
	m := w.b.cfg.Manager
	id, err := w.begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := m.Kill(id); err != nil {
			w.b.cfg.Log.Warn("end the sandbox of a build", "sandbox", id, "error", err)
		}
	}()
	ctx, unwatch := w.b.whileRoom(ctx, id)
	defer unwatch()
	err = m.Use(ctx, id, "build a template in", func(ctx context.Context, dial agentclient.DialFunc) error {
		return w.inGuest(ctx, agentclient.New(dial))
	})
	if err == nil {
		w.say("saving %s", w.bd.Template)
		err = w.save(ctx, id)
	}
	return causeOf(ctx, err)
}

// roomInterval is how often a build is looked at for whether it has been paused because the disk is
// full. It stays so for 2 seconds at least.
const roomInterval = time.Second

// whileRoom returns a context that ends, with bake.ErrFull as its cause, when a sandbox is paused
// because the disk is full: its guest would stand still until the build has taken too long.
func (b *Builder) whileRoom(ctx context.Context, id string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for wait(ctx, roomInterval) == nil {
			if s, err := b.cfg.Manager.Get(id); err == nil && s.Info().DiskFull {
				cancel(bake.ErrFull)
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// saveAgain is how long a build waits for its turn where the host makes as many snapshots as it
// may.
const saveAgain = time.Second

// save makes a snapshot of the sandbox under the template's name.
func (w *work) save(ctx context.Context, id string) error {
	for {
		_, err := w.b.cfg.Manager.Branch(ctx, id, sandbox.BranchRequest{Tag: w.bd.Template, Mode: vm.BranchDiff,
			Template: true, Replace: w.plan.MayReplace})
		var busy *sandbox.BusyError
		if !errors.As(err, &busy) {
			return err
		}
		if err := wait(ctx, saveAgain); err != nil {
			return err
		}
	}
}

// begin makes the sandbox of the build, and returns its id.
func (w *work) begin(ctx context.Context) (string, error) {
	tag := w.plan.FromTemplate
	if tag == "" {
		parent, unpin, err := w.bake(ctx)
		if err != nil {
			return "", err
		}
		defer unpin() // the sandbox has a lease of its own then
		tag = parent
	} else {
		w.say("FROM template %s", tag)
		if err := w.fits(ctx, tag); err != nil {
			return "", err
		}
	}
	note, err := Mark(w.bd.ID)
	if err != nil {
		return "", err
	}
	made, err := w.b.cfg.Manager.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: 1, HostnamePrefix: "build",
		TTL:        maxBuild + cleanupTime,
		Annotation: note})
	if err != nil {
		return "", err
	}
	return made.Sandboxes[0].ID, nil
}

// What E2B's command line, and its SDKs before those of September 2026, ask for where nobody has
// said anything.
const (
	usualCPUs = 2
	usualMiB  = 1024
)

// fits refuses a machine that a fork of a template cannot have, unless it is the usual one.
func (w *work) fits(ctx context.Context, tag string) error {
	m := w.b.cfg.Manager
	if err := m.MayUse(ctx, tag); err != nil {
		return err
	}
	d, err := m.Snapshots().Detail(tag)
	if err == nil && d.Transient {
		err = &store.NotFoundError{Tag: tag}
	}
	if err != nil {
		return err
	}
	have := d.Machine
	if w.bd.CPUs == usualCPUs && w.bd.MemoryMiB == usualMiB {
		if have.VCPUs != usualCPUs || have.MemoryBytes>>20 != usualMiB {
			w.say("it has the CPUs and the memory of %s: %d and %d MiB", tag, have.VCPUs, have.MemoryBytes>>20)
		}
		return nil
	}
	if n := w.bd.CPUs; n != 0 && n != have.VCPUs {
		return invalid.Errorf("cpuCount", "%d: the template %s has %d, and so has what is made of it", n, tag, have.VCPUs)
	}
	if n := w.bd.MemoryMiB; n != 0 && n<<20 != have.MemoryBytes {
		return invalid.Errorf("memoryMB", "%d: the template %s has %d, and so has what is made of it", n, tag,
			have.MemoryBytes>>20)
	}
	return nil
}

// Size of the file system of a template that is made of a container image, in MiB: what is not used
// takes no room.
const imageDiskMiB = 8 << 10

// bake makes a snapshot of a container image, which goes when nobody uses it, and is kept until
// unpin is called.
func (w *work) bake(ctx context.Context) (tag string, unpin func(), err error) {
	w.say("FROM %s", w.plan.FromImage)
	from := Image{w.plan.FromImage, w.plan.Login, imageDiskMiB + w.bd.FreeMiB}
	req, err := w.b.cfg.Boot(ctx, from, func(stage string) { w.say("%s", stage) })
	if err != nil {
		return "", nil, err
	}
	req.Client, req.Tag, req.Transient = w.bd.Who, "build-"+w.bd.ID, true
	if w.bd.CPUs != 0 {
		req.VCPUs = w.bd.CPUs
	}
	if w.bd.MemoryMiB != 0 {
		req.MemoryMiB = w.bd.MemoryMiB
	}
	w.say("boot")
	if _, err := w.b.cfg.Baker.Bake(ctx, req); err != nil {
		return "", nil, err
	}
	unpin, err = w.b.cfg.Manager.Snapshots().Pin(req.Tag)
	return req.Tag, unpin, err
}

// inGuest carries out what is done in the sandbox.
func (w *work) inGuest(ctx context.Context, c *agentclient.Client) error {
	if err := w.settle(ctx, c); err != nil {
		return err
	}
	for n, s := range w.plan.Steps {
		w.step = fmt.Sprint(n + 1)
		w.say("[%d/%d] %s", n+1, len(w.plan.Steps), s.text())
		if err := w.do(ctx, c, s); err != nil {
			return &ownError{err}
		}
	}
	w.step = Finalize
	if err := w.start(ctx, c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, syncTime, fmt.Errorf("the guest did not write its disk within %v",
		syncTime))
	defer cancel()
	if err := c.Sync(ctx); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

// How long the guest may take for what is no command of the client's.
const (
	ownTime  = 5 * time.Minute
	syncTime = 10 * time.Minute
)
