package build

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// maxFetch is how long a download in a guest may take.
const maxFetch = 30 * time.Minute

var (
	//go:embed fetch.sh
	fetchScript string
	//go:embed git.sh
	gitScript string
)

// fetchRemote downloads a file in the guest, so that the guest's network policy applies.
func (g *guest) fetchRemote(ctx context.Context, r *plan.Remote, dir string) error {
	return g.scriptFor(ctx, maxFetch, fetchScript, r.URL, path.Join(dir, r.Name), r.Hash+"sum", r.Sum)
}

// fetchGit fetches a commit in the guest.
func (g *guest) fetchGit(ctx context.Context, r *plan.Git, dir string) (err error) {
	work, err := g.script(ctx, workDir)
	if err != nil {
		return err
	}
	work = strings.TrimSpace(work)
	defer func() { err = g.removeAfter(ctx, err, work) }()
	keep := ""
	if r.Keep {
		keep = "keep"
	}
	return g.scriptFor(ctx, maxFetch, gitScript, dir, r.URL, r.Ref, r.Commit, r.Dir, keep, work)
}

// scriptFor is like the method script, but for long-running scripts without output.
func (g *guest) scriptFor(ctx context.Context, within time.Duration, text string, args ...string) error {
	r, err := g.c.Exec(ctx, agentclient.ExecRequest{Args: append([]string{"/bin/sh", "-c", text, "sh"}, args...),
		User: "root", Timeout: within, MaxOutput: maxAnswer})
	if err != nil {
		return err
	}
	if err := failure(r, within); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(printable(string(r.Stderr))))
	}
	return nil
}
