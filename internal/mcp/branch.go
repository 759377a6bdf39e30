package mcp

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/forkd/forkd/client"
)

// branchTools returns the tools that copy sandboxes, save their states and return to them.
func branchTools() []tool {
	return []tool{
		define(
			"fork",
			"Copy a running sandbox n times, with its memory, processes and files. It runs on. The copies are independent of it and of each other. "+
				"Nothing is left when the last copy is killed; use branch for a state that you want to come back to.",
			Run,
			0,
			fork,
			between("n", 1, 100, 1),
		),
		define(
			"branch",
			"Save the state of a running sandbox under a tag, to come back to it with rollback or spawn_sandboxes, and start n children from it. "+
				"The sandbox pauses for milliseconds and runs on.",
			Run,
			0,
			branch,
			between("n", 0, 100, 0),
			oneOf("mode", "live", "diff", "full"),
		),
		define(
			"rollback",
			"Put a sandbox back to a state that was saved by branch: memory, processes and files. What it did since is lost. "+
				"It keeps its id. Without to: to the snapshot that it runs from.",
			Run,
			destructive,
			rollback,
		),
		define("tree", "Show which snapshots and sandboxes come from which.", Read, readOnly, tree),
		define(
			"set_state",
			"Pause a sandbox where it is, suspend it to disk and free its memory, or let it run again.",
			Run,
			idempotent,
			setState,
			among("state", "running", "paused", "suspended"),
		),
		define(
			"delete_snapshot",
			"Remove a snapshot. With cascade, also those that were branched from it.",
			Admin,
			destructive,
			deleteSnapshot,
		),
	}
}

// box describes a sandbox to a model.
type box struct {
	ID          string            `json:"sandbox_id"`
	SnapshotTag string            `json:"snapshot_tag" jsonschema:"that it runs from"`
	State       string            `json:"state"`
	Labels      map[string]string `json:"labels,omitempty"`
}

func boxOf(s client.Sandbox) box { return box{s.ID, s.SnapshotTag, s.State, s.Labels} }

func boxesOf(all []client.Sandbox) []box {
	list := make([]box, 0, len(all))
	for _, s := range all {
		list = append(list, boxOf(s))
	}
	return list
}

type forkArgs struct {
	SandboxID string            `json:"sandbox_id"`
	N         int               `json:"n,omitempty" jsonschema:"how many copies"`
	Env       map[string]string `json:"env,omitempty" jsonschema:"environment of programs that are started in the copies"`
	Labels    map[string]string `json:"labels,omitempty" jsonschema:"what you call the copies"`
	TTLSecs   float64           `json:"ttl_secs,omitempty" jsonschema:"after which the copies are removed; 0: never"`
}

type forked struct {
	Sandboxes []box   `json:"sandboxes"`
	PauseMS   float64 `json:"pause_ms" jsonschema:"how long the source stood still"`
	ForkMS    float64 `json:"fork_ms" jsonschema:"until the last copy was ready"`
}

func fork(ctx context.Context, c *call, in forkArgs) (forked, error) {
	f, err := c.Fork(
		ctx,
		client.ForkRequest{SourceID: in.SandboxID, N: in.N, Env: in.Env, Labels: in.Labels, TTLSecs: in.TTLSecs},
	)
	return forked{boxesOf(f.Sandboxes), f.PauseMS, f.ForkWallMS}, err
}

type branchArgs struct {
	SandboxID string            `json:"sandbox_id"`
	Tag       string            `json:"tag,omitempty" jsonschema:"name of the state; empty: the daemon chooses one"`
	N         int               `json:"n,omitempty" jsonschema:"how many children to start from it"`
	Mode      string            `json:"mode,omitempty"`
	Labels    map[string]string `json:"labels,omitempty" jsonschema:"of the children"`
}

type branched struct {
	Tag        string  `json:"tag"`
	Status     string  `json:"status"`
	PauseMS    float64 `json:"pause_ms" jsonschema:"how long the sandbox stood still"`
	SavedBytes uint64  `json:"saved_bytes" jsonschema:"memory that was written since the branch before"`
	Fallback   string  `json:"fallback_reason,omitempty" jsonschema:"why another mode was used"`
	Sandboxes  []box   `json:"sandboxes" jsonschema:"the children"`
}

func branch(ctx context.Context, c *call, in branchArgs) (b branched, err error) {
	s, err := c.Branch(ctx, in.SandboxID, client.BranchRequest{Tag: in.Tag, Mode: in.Mode})
	if err != nil {
		return b, err
	}
	b = branched{Tag: s.Tag, Status: s.Status, Fallback: s.Fallback, Sandboxes: []box{}}
	if s.PauseMS != nil {
		b.PauseMS = *s.PauseMS
	}
	if s.DirtyBytes != nil {
		b.SavedBytes = *s.DirtyBytes
	}
	if in.N == 0 {
		return b, nil
	}
	f, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: s.Tag, N: in.N, Labels: in.Labels})
	if err != nil {
		return b, fmt.Errorf("the snapshot %s was made, but its children were not: %w", s.Tag, err)
	}
	b.Sandboxes = boxesOf(f.Sandboxes)
	return b, nil
}

type rollbackArgs struct {
	SandboxID string `json:"sandbox_id"`
	To        string `json:"to,omitempty" jsonschema:"tag of a snapshot of the sandbox's own line; empty: the one that it runs from"`
}

type rolledBack struct {
	SandboxID    string  `json:"sandbox_id"`
	RolledBackTo string  `json:"rolled_back_to"`
	State        string  `json:"state"`
	ReadyMS      float64 `json:"ready_ms"`
}

func rollback(ctx context.Context, c *call, in rollbackArgs) (rolledBack, error) {
	r, err := c.Rollback(ctx, in.SandboxID, in.To)
	return rolledBack{r.ID, r.RolledBackTo, r.State, r.RollbackReadyMS}, err
}

type stateArgs struct {
	SandboxID string `json:"sandbox_id"`
	State     string `json:"state" jsonschema:"that it is to be in"`
}

func setState(ctx context.Context, c *call, in stateArgs) (b box, err error) {
	now, err := c.Sandbox(ctx, in.SandboxID)
	if err != nil || now.State == in.State {
		return boxOf(now), err
	}
	change := c.Resume
	switch in.State {
	case "paused":
		change = c.Pause
	case "suspended":
		change = c.Suspend
	}
	s, err := change(ctx, in.SandboxID)
	return boxOf(s), err
}

type deleteArgs struct {
	Tag     string `json:"tag"`
	Cascade bool   `json:"cascade,omitempty" jsonschema:"remove also the snapshots that were branched from it"`
}

type deleted struct {
	Tag     string `json:"tag"`
	Deleted bool   `json:"deleted"`
}

func deleteSnapshot(ctx context.Context, c *call, in deleteArgs) (deleted, error) {
	return deleted{in.Tag, true}, c.DeleteSnapshot(ctx, in.Tag, client.DeleteOptions{Cascade: in.Cascade})
}

type treeArgs struct {
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"show only what this sandbox comes from, and what comes from it"`
}

type treeNode struct {
	Snapshot string `json:"snapshot,omitempty" jsonschema:"tag, if it is a snapshot"`
	Sandbox  string `json:"sandbox,omitempty" jsonschema:"id, if it is a sandbox"`
	Parent   string `json:"parent,omitempty" jsonschema:"tag or id that it comes from"`
	State    string `json:"state"`

	parent string // key of the parent
}

func (n *treeNode) name() string { return cmp.Or(n.Snapshot, n.Sandbox) }

type treeResult struct {
	Nodes   []treeNode `json:"nodes" jsonschema:"parents before children"`
	Omitted int        `json:"omitted,omitempty"`
}

func tree(ctx context.Context, c *call, in treeArgs) (r treeResult, err error) {
	snapshots, err := c.Snapshots(ctx)
	if err != nil {
		return r, err
	}
	sandboxes, err := c.Sandboxes(ctx)
	if err != nil {
		return r, err
	}
	family := familyOf(snapshots, sandboxes)
	if in.SandboxID != "" {
		if _, err := c.Sandbox(ctx, in.SandboxID); err != nil {
			return r, err
		}
		family.keepLine(sandboxKey(in.SandboxID))
	}
	r.Nodes = []treeNode{}
	var text strings.Builder
	family.walk(func(n *treeNode, depth int) {
		if len(r.Nodes) == maxListed {
			r.Omitted++
			return
		}
		r.Nodes = append(r.Nodes, *n)
		kind := "snapshot"
		if n.Sandbox != "" {
			kind = "sandbox"
		}
		fmt.Fprintf(&text, "%s%s %s (%s)\n", strings.Repeat("  ", depth), kind, n.name(), n.State)
	})
	if r.Omitted > 0 {
		fmt.Fprintf(&text, "[… %d more omitted: give sandbox_id …]\n", r.Omitted)
	}
	c.say(cmp.Or(text.String(), "There are no snapshots and no sandboxes.\n"))
	return r, nil
}
