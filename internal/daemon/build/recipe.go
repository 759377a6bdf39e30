package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/build/recipeplan"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Recipe is a recipe to build instead of a Dockerfile.
type Recipe struct {
	Text []byte
	Boot plan.Boot // files made from the recipe's base and packages

	Network *snapshot.Network // nil: as in the recipe
	Limits  *vm.Limits        // nil: as in the recipe
	Ready   time.Duration     // how long the guest may take to boot; 0: the baker's default
}

// readRecipe makes the plan of a recipe.
func (b *Builder) readRecipe(ctx context.Context, r *Recipe, files []plan.File) (*plan.Plan, error) {
	digest, err := identityOf(r.Boot)
	if err != nil {
		return nil, err
	}
	p, err := recipeplan.Read(ctx, recipeplan.Request{Text: r.Text, Boot: r.Boot, Digest: digest, Files: files,
		Network: r.Network, Limits: r.Limits})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, invalid.Errorf("recipe", "%v", err)
	}
	base := p.Steps[0].Base
	if err := snapshot.CheckEnv(base.Boot.Env); err != nil {
		return nil, &invalid.Error{Field: "env", Reason: err.Error()}
	}
	if have := bake.HostMemoryMiB(); base.MemoryMiB > have {
		return nil, invalid.Errorf("recipe", "memory_mib: %d: the daemon's host has %d MiB of memory", base.MemoryMiB, have)
	}
	return p, b.cfg.Baker.CheckLimits(p.Steps[p.Result].Children.Limits)
}

// identityOf returns a text that changes if one of the files is replaced. It does not read the
// content of the files: files in the cache are large, and never change in place.
func identityOf(b plan.Boot) (string, error) {
	h := sha256.New()
	for _, f := range []struct{ field, path string }{{"kernel", b.Kernel}, {"initrd", b.Initrd}, {"rootfs", b.Rootfs}} {
		if f.path == "" && f.field == "initrd" {
			continue
		}
		field := "boot." + f.field
		if !filepath.IsAbs(f.path) {
			return "", invalid.Errorf(field, "%.500q: want the absolute path of a file on the daemon's host", f.path)
		}
		info, err := os.Stat(f.path)
		if err != nil {
			return "", &invalid.Error{Field: field, Reason: err.Error()}
		}
		if !info.Mode().IsRegular() || info.Size() == 0 {
			return "", invalid.Errorf(field, "%s: want a regular file with content", f.path)
		}
		fmt.Fprintf(h, "%s %q %d %d\n", f.field, f.path, info.Size(), info.ModTime().UnixNano())
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// settingOf converts the network policy of a plan to the setting of a sandbox.
func settingOf(n *snapshot.Network) (*netclient.Setting, error) {
	if n == nil {
		return nil, nil
	}
	s, err := netclient.FromText(n)
	return &s, err
}

// forkFor returns the request for a fork in which a step runs. A step that has settings for
// children always gets a new fork with these settings. The sandbox of the warm-up does not get the
// settings: its memory use may exceed a limit in the settings.
func (w *work) forkFor(i int, tag string) (sandbox.ForkRequest, error) {
	req, err := requestOf(tag)
	if err != nil {
		return req, err
	}
	children := w.plan.Steps[i].Children
	if children == nil {
		req.Network, err = settingOf(w.plan.Network)
		return req, err
	}
	if req.Network, err = settingOf(children.Network); req.Network == nil && err == nil {
		usual := netclient.Default()
		req.Network = &usual
	}
	req.Limits, req.Hooks = &children.Limits, &children.Hooks
	return req, err
}

// children marks the sandbox of g as strict if its children are to be strict.
func (g *guest) children(ctx context.Context, c *plan.Children) error {
	if !c.Strict {
		return nil
	}
	return g.w.b.cfg.Manager.SetStrict(ctx, g.box, unique.Refuse)
}

// python runs code in the warm interpreter and passes its output to the observer.
func (g *guest) python(ctx context.Context, w *plan.Warm) error {
	within := secondsOr(w.TimeoutSecs, maxCommand)
	r, err := g.c.Eval(ctx, w.Python, agentclient.EvalOptions{Timeout: within, MaxOutput: maxAnswer})
	if err != nil {
		return err
	}
	out := lines{g: g}
	for _, text := range [][]byte{r.Stdout, r.Stderr} {
		if err := out.add(text); err != nil {
			return err
		}
		out.end()
	}
	switch err := r.Err(); {
	case r.Error != nil:
		if err := out.add([]byte(r.Error.Traceback)); err != nil {
			return err
		}
		out.end()
		return r.Error
	case errors.Is(err, agentclient.ErrTimeout):
		return fmt.Errorf("%w after %v: raise timeout_secs", errNotDone, within)
	case errors.Is(err, agentclient.ErrOutputTruncated):
		return nil
	default:
		return err
	}
}

// secondsOr converts a number of seconds to a duration. If the number is 0, it returns its second
// argument.
func secondsOr(seconds float64, otherwise time.Duration) time.Duration {
	if seconds == 0 {
		return otherwise
	}
	return time.Duration(seconds * float64(time.Second))
}

// checkSource returns an error if a request has no recipe and no Dockerfile, or has a recipe
// together with a Dockerfile or with parameters that a recipe excludes.
func (r *Request) checkSource() error {
	empty := len(strings.TrimSpace(string(r.Dockerfile.Text))) == 0
	switch {
	case r.Recipe == nil && empty:
		return invalid.Errorf("dockerfile", "it is empty")
	case r.Recipe != nil && !empty:
		return invalid.Errorf("recipe", "excludes dockerfile")
	case r.Recipe != nil && (r.VCPUs != 0 || r.MemoryMiB != 0 || r.DiskMiB != 0):
		return invalid.Errorf("recipe", "it says itself what vcpus, memory_mib and disk_mib its machine has")
	case r.Recipe != nil && (len(r.Secrets) > 0 || r.Dockerfile.Target != "" || len(r.Dockerfile.Args) > 0):
		return invalid.Errorf("recipe", "it takes no secrets, target and args: they are for Dockerfiles")
	}
	return nil
}
