package mcp

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/forkd/forkd/client"
)

// branchTools returns the tools that copy sandboxes, save their states and roll them back.
func branchTools() []tool {
	return []tool{
		define(
			"fork",
			"Copy a running sandbox n times, with its memory, processes and files. The sandbox keeps running. The copies are independent of it and of each other. "+
				"When the last copy is killed, nothing remains; use branch for a state to which you want to return.",
			Run,
			0,
			fork,
			between("n", 1, 100, 1),
			among("hold_answer", "refuse", "record", "wait"),
		),
		define(
			"branch",
			"Save the state of a running sandbox under a tag, so that rollback or spawn_sandboxes can return to it, and start n children from it. "+
				"The sandbox pauses for milliseconds and then continues.",
			Run,
			0,
			branch,
			between("n", 0, 100, 0),
			oneOf("mode", "live", "diff", "full"),
		),
		define(
			"rollback",
			"Return a sandbox to a state that branch has saved: memory, processes and files. Everything since then is lost. "+
				"The sandbox keeps its id. Without the argument to, it returns to the snapshot that it runs from.",
			Run,
			destructive,
			rollback,
		),
		define("tree", "Show the tree of snapshots and sandboxes: which was made from which.", Read, readOnly, tree),
		define(
			"set_state",
			"Pause a sandbox, suspend it to disk to free its memory, or let it continue.",
			Run,
			idempotent,
			setState,
			among("state", "running", "paused", "suspended"),
		),
		define(
			"delete_snapshot",
			"Remove a snapshot. With cascade, also remove snapshots that were branched from it.",
			Admin,
			destructive,
			deleteSnapshot,
		),
	}
}

// box describes a sandbox to a model.
type box struct {
	ID          string            `json:"sandbox_id"`
	SnapshotTag string            `json:"snapshot_tag" jsonschema:"tag of the snapshot that it runs from"`
	State       string            `json:"state"`
	Labels      map[string]string `json:"labels,omitempty"`
}

func boxOf(s client.Sandbox) box { return box{s.ID, s.SnapshotTag, s.State, s.Labels} }

// boxesOf describes new sandboxes. If their labels together are too long, it omits the labels.
func boxesOf(all []client.Sandbox) []box {
	list := make([]box, 0, len(all))
	left := room(maxText)
	for _, s := range all {
		b := boxOf(s)
		if !left.fits(b) {
			b.Labels = nil
		}
		list = append(list, b)
	}
	return list
}

type forkArgs struct {
	SandboxID string            `json:"sandbox_id"`
	N         int               `json:"n,omitempty" jsonschema:"number of copies"`
	Env       map[string]string `json:"env,omitempty" jsonschema:"environment variables of programs started in the copies"`
	Labels    map[string]string `json:"labels,omitempty" jsonschema:"labels of the copies"`
	TTLSecs   float64           `json:"ttl_secs,omitempty" jsonschema:"seconds after which the copies are removed; 0: never"`
	holdArgs
	Volumes []mountArg `json:"volumes,omitempty" jsonschema:"volumes to mount"`
}

type forked struct {
	Sandboxes []box   `json:"sandboxes"`
	PauseMS   float64 `json:"pause_ms" jsonschema:"how long the source was paused"`
	ForkMS    float64 `json:"fork_ms" jsonschema:"time until the last copy was ready"`
}

func fork(ctx context.Context, c *call, in forkArgs) (forked, error) {
	hold, err := in.hold()
	if err != nil {
		return forked{}, err
	}
	f, err := c.Fork(ctx, client.ForkRequest{SourceID: in.SandboxID, N: in.N, Env: in.Env, Labels: in.Labels,
		TTLSecs: in.TTLSecs, HoldEffects: hold, Volumes: mountsOf(in.Volumes)})
	return forked{boxesOf(f.Sandboxes), f.PauseMS, f.ForkWallMS}, err
}

type branchArgs struct {
	SandboxID string            `json:"sandbox_id"`
	Tag       string            `json:"tag,omitempty" jsonschema:"name of the state; empty: the daemon chooses one"`
	N         int               `json:"n,omitempty" jsonschema:"number of children to start from it"`
	Mode      string            `json:"mode,omitempty"`
	Labels    map[string]string `json:"labels,omitempty" jsonschema:"labels of the children"`
}

type branched struct {
	Tag        string  `json:"tag"`
	Status     string  `json:"status"`
	PauseMS    float64 `json:"pause_ms" jsonschema:"how long the sandbox was paused"`
	SavedBytes uint64  `json:"saved_bytes" jsonschema:"memory written since the previous branch"`
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
	To        string `json:"to,omitempty" jsonschema:"tag of an ancestor or a branch of the sandbox; empty: the snapshot that it runs from"`
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
	State     string `json:"state" jsonschema:"the new state"`
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
	Cascade bool   `json:"cascade,omitempty" jsonschema:"also remove snapshots that were branched from it"`
}

type deleted struct {
	Tag     string `json:"tag"`
	Deleted bool   `json:"deleted"`
}

func deleteSnapshot(ctx context.Context, c *call, in deleteArgs) (deleted, error) {
	return deleted{in.Tag, true}, c.DeleteSnapshot(ctx, in.Tag, client.DeleteOptions{Cascade: in.Cascade})
}

type treeArgs struct {
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"show only the ancestors and descendants of this sandbox"`
}

type treeNode struct {
	Snapshot string `json:"snapshot,omitempty" jsonschema:"tag, if it is a snapshot"`
	Sandbox  string `json:"sandbox,omitempty" jsonschema:"id, if it is a sandbox"`
	Parent   string `json:"parent,omitempty" jsonschema:"tag or id of the parent"`
	State    string `json:"state"`

	parent string // key of the parent; see family
}

func (n *treeNode) name() string { return cmp.Or(n.Snapshot, n.Sandbox) }

type treeResult struct {
	Nodes   []treeNode `json:"nodes" jsonschema:"parents before children"`
	Omitted int        `json:"omitted,omitempty" jsonschema:"at least this many nodes are omitted"`
}

// maxFamily bounds the number of snapshots, and the number of sandboxes, in a tree. Only the fields
// of type origin are kept for each snapshot and sandbox.
const maxFamily = 2000

func tree(ctx context.Context, c *call, in treeArgs) (r treeResult, err error) {
	snapshots, more, err := origins(ctx, c.SnapshotPage, snapshotOrigin)
	if err != nil {
		return r, err
	}
	sandboxes, more2, err := origins(ctx, c.SandboxPage, sandboxOrigin)
	if err != nil {
		return r, err
	}
	r.Omitted = more + more2
	if in.SandboxID != "" {
		box, err := c.Sandbox(ctx, in.SandboxID)
		if err != nil {
			return r, err
		}
		// The list may have omitted this sandbox. familyOf ignores duplicates.
		sandboxes = append(sandboxes, sandboxOrigin(box))
	}
	family := familyOf(snapshots, sandboxes)
	if in.SandboxID != "" {
		family.keepLine(sandboxKey(in.SandboxID))
	}
	r.Nodes = []treeNode{}
	var text strings.Builder
	left := room(maxText)
	family.walk(func(n *treeNode, depth int) {
		kind := "snapshot"
		if n.Sandbox != "" {
			kind = "sandbox"
		}
		if len(r.Nodes) == maxListed || !left.fits(n) || !left.spend(2*depth) {
			r.Omitted++
			return
		}
		r.Nodes = append(r.Nodes, *n)
		fmt.Fprintf(&text, "%s%s %s (%s)\n", strings.Repeat("  ", depth), kind, n.name(), n.State)
	})
	if r.Omitted > 0 {
		fmt.Fprintf(&text, "[… %d more omitted: give sandbox_id …]\n", r.Omitted)
	}
	c.say(cmp.Or(text.String(), "There are no snapshots and no sandboxes.\n"))
	return r, nil
}
