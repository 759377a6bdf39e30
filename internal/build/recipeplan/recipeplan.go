// Package recipeplan converts recipes to plans: a machine boots, receives the recipe's files, and
// runs the warm-up. All steps continue one machine, so the processes that the warm-up starts run in
// every child of the snapshot.
//
// The package only makes plans. Package image parses recipes, and makes the root file systems from
// which their machines boot.
package recipeplan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Request is a recipe, together with values that the plan needs but the recipe's text does not
// contain.
type Request struct {
	Text   []byte
	Boot   plan.Boot   // made from the recipe's base and packages; the recipe's variables override its Env
	Digest string      // digest of the files of Boot
	Files  []plan.File // sorted files of the build context, which is the recipe's directory

	Network *snapshot.Network // nil: the network of the recipe
	Limits  *vm.Limits        // nil: the limits of the recipe
}

// Read makes a plan from a recipe. Its errors name the field at fault.
func Read(ctx context.Context, req Request) (*plan.Plan, error) {
	recipe, err := image.ParseRecipe(req.Text)
	if err != nil {
		return nil, err
	}
	if n := len(recipe.Files) + len(recipe.Warmup.Commands); n > maxEntries {
		return nil, fmt.Errorf("files and warmup.commands: %d entries: want at most %d in all", n, maxEntries)
	}
	r := &reader{req: req, recipe: recipe, plan: &plan.Plan{Network: &snapshot.Network{Mode: "none"}}}
	children := plan.Children{Network: req.Network, Limits: recipe.Limits.Limits, Strict: recipe.Unique == "strict",
		Hooks: recipe.Hooks.Hooks}
	if n := recipe.Network; n != nil && req.Network == nil {
		children.Network = &snapshot.Network{Mode: n.Mode, Allow: n.Allow, Deny: n.Deny, AllowECH: n.AllowECH}
		if n.Mode == "" { // a valid recipe without a mode has rules that allow destinations
			children.Network.Mode = "allow"
		}
	}
	// Without a network in the recipe or the request, the plan's network stays "none". Data that a
	// warm-up downloads would be in every child of the snapshot, so a recipe must request the
	// network.
	if children.Network != nil {
		r.plan.Network = children.Network
	}
	if req.Limits != nil {
		children.Limits = *req.Limits
	}
	boot := req.Boot
	boot.Env = recipe.EnvOver(boot.Env)
	r.add("boot "+recipe.Base, plan.Step{From: -1, Base: &plan.Base{Boot: &boot, Digest: req.Digest, Memory: true,
		VCPUs: uint32(recipe.VCPUs), MemoryMiB: uint64(recipe.MemoryMiB), VolumeSlots: uint32(recipe.VolumeSlots)}})
	if err := r.files(ctx); err != nil {
		return nil, err
	}
	r.warmup()
	r.add("flush the disk", plan.Step{Defaults: &plan.Defaults{KeepUser: true}})
	r.add("save the settings of children", plan.Step{Children: &children})
	r.plan.Result = len(r.plan.Steps) - 1
	for i := range r.plan.Steps {
		s := &r.plan.Steps[i]
		s.Name = fmt.Sprintf("[%d/%d] %s", i+1, len(r.plan.Steps), s.Name)
	}
	return r.plan, r.plan.Check()
}

// maxEntries is the maximum number of files and commands of a recipe. A reader adds a few steps of
// its own to the plan.
const maxEntries = plan.MaxSteps - 5

// reader makes the plan of one recipe.
type reader struct {
	req     Request
	recipe  *image.Recipe
	plan    *plan.Plan
	entries int // number of entries of all sources of files
}

// add adds a step that continues the previous step. The function Read adds the step's number to its
// name later.
func (r *reader) add(name string, s plan.Step) {
	if s.Name = name; s.Base == nil {
		s.From = len(r.plan.Steps) - 1
	}
	r.plan.Steps = append(r.plan.Steps, s)
}

// files(ctx) adds a step for each entry of the recipe's field "files".
func (r *reader) files(ctx context.Context) error {
	for i, f := range r.recipe.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		src, err := r.source(f)
		if err != nil {
			return fmt.Errorf("files[%d]: %w", i, err)
		}
		r.add(fmt.Sprintf("files[%d] %s to %s", i, f.Source, f.Target), plan.Step{
			Copy: &plan.Copy{Sources: []plan.Source{*src}, Target: f.Target}})
	}
	return nil
}

// source returns the files that an entry names.
func (r *reader) source(f image.File) (*plan.Source, error) {
	at, found := r.search(f.Source)
	below := f.Source + "/"
	first, _ := r.search(below)
	end, _ := r.search(f.Source + "0") // '0' is the byte after '/'
	if r.entries += max(1, end-first); r.entries > dockerfile.MaxCopied(len(r.req.Files)) {
		return nil, fmt.Errorf("source: the entries of the recipe copy the %d files of the build context too many times: "+
			"want at most %d files in all", len(r.req.Files), dockerfile.MaxCopied(len(r.req.Files)))
	}
	var inside []plan.File
	for _, e := range r.req.Files[first:end] {
		inside = append(inside, withMode(e, f.Mode))
	}
	switch {
	case len(inside) > 0 || found && r.req.Files[at].Kind == plan.KindDir:
		for _, e := range inside {
			if err := image.CheckTarget(strings.TrimSuffix(f.Target, "/") + "/" + e.Path[len(below):]); err != nil {
				return nil, err
			}
		}
		return &plan.Source{Files: inside, Strip: len(below), Dir: true}, nil
	case !found:
		return nil, fmt.Errorf("source: %q: the build context has no such file", f.Source)
	case r.req.Files[at].Kind != plan.KindFile:
		return nil, fmt.Errorf("source: %q: want a file or a directory", f.Source)
	case f.Target == "/":
		return nil, fmt.Errorf("target: %q is a directory and %q is not: name the file", f.Target, f.Source)
	}
	return &plan.Source{Files: []plan.File{withMode(r.req.Files[at], f.Mode)},
		Strip: strings.LastIndexByte(f.Source, '/') + 1}, nil
}

// search returns the index of a path in the build context, and whether the context has the path. If
// the context lacks the path, the result is the index of the first file that sorts after the path.
func (r *reader) search(path string) (at int, found bool) {
	return slices.BinarySearchFunc(r.req.Files, path, func(e plan.File, path string) int {
		return strings.Compare(e.Path, path)
	})
}

// withMode returns a file with the permissions that it has in the image. Only the execute bit of
// the file in the context matters, because its other bits depend on the client's umask.
func withMode(e plan.File, mode image.Mode) plan.File {
	switch {
	case e.Kind != plan.KindFile:
		e.Mode = 0o755
	case mode != 0:
		e.Mode = uint32(mode)
	default:
		e.Mode = 0o644 | e.Mode>>6&1*0o111
	}
	return e
}

// maxTitle is the maximum length of a command in the name of a step, in bytes.
const maxTitle = 60

// title returns the first line of a command, cut to the length that fits the name of a step.
func title(command string) string {
	line, _, more := strings.Cut(strings.TrimSpace(command), "\n")
	if line = strings.TrimSpace(line); len(line) > maxTitle {
		line, more = strings.ToValidUTF8(line[:maxTitle], ""), true
	}
	if more {
		line += " …"
	}
	return line
}

// defaultTimeoutSecs is the default of warmup.timeout_secs.
const defaultTimeoutSecs = 600

// warmup adds the steps whose processes and memory stay in the snapshot.
func (r *reader) warmup() {
	w := r.recipe.Warmup
	w.TimeoutSecs = cmp.Or(w.TimeoutSecs, defaultTimeoutSecs)
	shell := func(command string) []string { return []string{"/bin/sh", "-c", command} }
	if w.Start != "" {
		step := &plan.Warm{Process: plan.Process{Args: shell(w.Start)}, Probe: shell(w.Probe), TimeoutSecs: w.TimeoutSecs}
		r.add("warmup.start "+title(w.Start), plan.Step{Warm: step})
	}
	for i, command := range w.Commands {
		step := &plan.Warm{Process: plan.Process{Args: shell(command)}, TimeoutSecs: w.TimeoutSecs}
		r.add(fmt.Sprintf("warmup.commands[%d] %s", i, title(command)), plan.Step{Warm: step})
	}
	if w.Python != "" {
		r.add("warmup.python "+title(w.Python), plan.Step{Warm: &plan.Warm{Python: w.Python, TimeoutSecs: w.TimeoutSecs}})
	}
}
