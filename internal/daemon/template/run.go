package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/host/store"
)

// work is a running build. As a build.Observer, it receives the progress of the plan.
type work struct {
	b     *Builder
	bd    *Build
	plan  Plan
	files *build.Context
	req   build.Request

	mu    sync.Mutex
	steps []plan.Step // steps of the plan; empty until the plan is made
	step  string      // name of the current step
}

// run executes a build that was started. An error is a *stepError.
func (b *Builder) run(ctx context.Context, bd *Build, p Plan) error {
	w := &work{b: b, bd: bd, plan: p, step: Base, req: build.Request{Who: bd.Who, Admin: p.MayReplace, Tag: bd.Template,
		Replace: p.MayReplace, NoCache: p.Force, Login: p.Login, VCPUs: bd.CPUs, MemoryMiB: bd.MemoryMiB}}
	if bd.FreeMiB > 0 {
		w.req.DiskMiB = build.ImageDiskMiB + bd.FreeMiB
	}
	leave, err := b.cfg.Builds.Wait(ctx, bd.Who) // wait before archives are read into memory
	if err != nil {
		return w.reasonOf(ctx, err)
	}
	defer leave()
	ctx, cancel := b.cfg.Builds.Limit(ctx)
	defer cancel()
	if w.files, err = w.unpack(ctx); err == nil {
		_, err = b.cfg.Builds.BuildFrom(ctx, w.req, w.files, w.planOf, w)
		if closed := w.files.Close(); closed != nil {
			b.cfg.Log.Warn("remove the files of a build", "template", bd.Template, "error", closed)
		}
	}
	if err == nil {
		w.say(Finalize, "%s is ready", bd.Template)
		return nil
	}
	return w.reasonOf(ctx, err)
}

// reasonOf returns an error together with the step that caused it.
func (w *work) reasonOf(ctx context.Context, err error) *stepError {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cause := context.Cause(ctx); cause != nil {
		return &stepError{w.step, cause}
	}
	var read *stepError
	if errors.As(err, &read) {
		return read
	}
	var at *build.StepError
	if !errors.As(err, &at) {
		return &stepError{w.step, err}
	}
	err = fmt.Errorf("%s: %w", at.Name, at.Err)
	if w.step != Base {
		err = &ownError{err}
	}
	return &stepError{w.step, err}
}

// unpack reads the archives of the steps.
func (w *work) unpack(ctx context.Context) (*build.Context, error) {
	files, err := w.b.cfg.Builds.NewContext(w.bd.Who)
	if err != nil {
		return nil, err
	}
	have := make(map[string]bool)
	for n := range w.plan.Steps {
		s := &w.plan.Steps[n]
		if !s.isCopy() || have[s.FilesHash] {
			continue
		}
		have[s.FilesHash] = true
		f, err := os.Open(w.b.uploads.path(w.bd.ID, s.FilesHash))
		if err == nil {
			err = files.Unpack(ctx, f, s.FilesHash)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return nil, errors.Join(&stepError{fmt.Sprint(n + 1), &ownError{fmt.Errorf("the files that were sent: %w", err)}},
				files.Close())
		}
	}
	return files, nil
}

// Sizes that E2B's CLI requests by default. E2B's SDKs requested the same sizes before September
// 2026.
const (
	usualCPUs = 2
	usualMiB  = 1024
)

// base returns the base of the build. If the base is a template, the build keeps the template's
// size and memory, unless the client has requested another size.
func (w *work) base(ctx context.Context) (plan.Base, error) {
	if w.plan.FromImage != "" {
		return plan.Base{Image: w.plan.FromImage}, nil
	}
	tag, m := w.plan.FromTemplate, w.b.cfg.Manager
	if err := m.MayUse(ctx, tag); err != nil {
		return plan.Base{}, err
	}
	d, err := m.Snapshots().Detail(tag)
	if err == nil && d.Transient {
		err = &store.NotFoundError{Tag: tag}
	}
	if err != nil {
		return plan.Base{}, err
	}
	have := d.Machine
	cpus, mib := cmp.Or(w.req.VCPUs, have.VCPUs), cmp.Or(w.req.MemoryMiB, have.MemoryBytes>>20)
	switch {
	case cpus == have.VCPUs && mib == have.MemoryBytes>>20:
	case w.req.VCPUs == usualCPUs && w.req.MemoryMiB == usualMiB:
		w.say(Base, "it has the CPUs and the memory of %s: %d and %d MiB", tag, have.VCPUs, have.MemoryBytes>>20)
		w.req.VCPUs, w.req.MemoryMiB = 0, 0
	default:
		w.say(Base, "boots from the disk of %s with %d CPUs and %d MiB: what runs in it is not taken over", tag, cpus, mib)
	}
	return plan.Base{Snapshot: tag}, nil
}

// say adds a line to the build's log.
func (w *work) say(step, format string, args ...any) {
	w.bd.Log.add(levelInfo, step, fmt.Sprintf(format, args...))
}

// Planned implements build.Observer.
func (w *work) Planned(p *plan.Plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = p.Steps
}

// at returns the step with the given number, and its name in the log. Before the plan is made, the
// only step is the base.
func (w *work) at(number int) (label string, s plan.Step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.steps == nil:
		return Base, plan.Step{Name: "FROM " + cmp.Or(w.plan.FromImage, w.plan.FromTemplate)}
	case number == 0:
		return Base, plan.Step{}
	case w.steps[number].Line == 0:
		return Finalize, w.steps[number]
	}
	return fmt.Sprint(w.steps[number].Line), w.steps[number]
}

// Step implements build.Observer.
func (w *work) Step(number int, state string, _ time.Duration) {
	label, s := w.at(number)
	if s.Name == "" {
		return // the base is in the log already
	}
	switch state {
	case build.Started:
		w.mu.Lock()
		w.step = label
		w.mu.Unlock()
		w.say(label, "%s", s.Name)
	case build.Cached:
		w.say(label, "CACHED %s", s.Name)
	}
}

// Output implements build.Observer.
func (w *work) Output(number int, line string) {
	label, s := w.at(number)
	if s.Warm != nil {
		line = "[start] " + line
	}
	w.say(label, "%s", strings.TrimRight(line, " \t"))
}
