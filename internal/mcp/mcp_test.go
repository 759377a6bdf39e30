package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/mcp"
)

// Models see the documented tools. Each tool has schemas for its arguments and its result, an
// explanation of every argument that needs one, and hints. There are at most 18 tools in addition
// to the tools of forkd 0.5.
func TestToolsAreDescribed(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Admin)
	list, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	old := []string{
		"list_snapshots",
		"spawn_sandboxes",
		"branch_sandbox",
		"create_snapshot",
		"wait_for_text",
		"list_sandboxes",
		"get_sandbox",
		"kill_sandbox",
		"exec_command",
		"eval_code",
		"ping_sandbox",
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		input, _ := tool.InputSchema.(map[string]any)
		if tool.OutputSchema == nil || tool.Annotations == nil || len(tool.Description) < 20 ||
			input["additionalProperties"] != false && len(input) > 2 {
			t.Errorf("%s: %+v", tool.Name, tool)
		}
		properties, _ := input["properties"].(map[string]any)
		_, takesID := properties["sandbox_id"]
		without := []string{"list_snapshots", "list_sandboxes", "spawn_sandboxes", "create_snapshot", "delete_snapshot"}
		if takesID == slices.Contains(without, tool.Name) {
			t.Errorf("%s: takes sandbox_id: %v", tool.Name, takesID)
		}
	}
	for _, name := range old {
		if !slices.Contains(names, name) {
			t.Errorf("%s of forkd-mcp is missing", name)
		}
	}
	if len(names) > len(old)+18 {
		t.Errorf("%d tools: too many for a model", len(names))
	}
	again, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, tool := range again.Tools {
		if tool.Name != names[i] {
			t.Errorf("the order of tools is not always the same: %s at %d", tool.Name, i)
		}
	}
	//lint:ignore SA1019 a deprecated capability is one that must not be declared
	if got := c.InitializeResult(); got.Capabilities.Logging != nil {
		t.Errorf("capabilities %+v", got.Capabilities)
	}
	if got := c.InitializeResult(); got.Instructions == "" || got.Capabilities.Resources == nil ||
		!got.Capabilities.Resources.Subscribe {
		t.Errorf("server: %+v, capabilities %+v", got, got.Capabilities)
	}
}

// A client sees only the tools and resources of its scope, and cannot use other tools and
// resources.
func TestToolsOfScopes(t *testing.T) {
	rig := start(t)
	want := map[mcp.Scope][]string{mcp.Read: {"get_sandbox", "list_sandboxes", "list_snapshots", "tree"}}
	for _, d := range mcp.New("x").Describe() {
		if d.Scope <= mcp.Run {
			want[mcp.Run] = append(want[mcp.Run], d.Name)
		}
	}
	for scope, names := range want {
		c := connect(t, rig.Client, scope)
		list, err := c.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, tool := range list.Tools {
			got = append(got, tool.Name)
		}
		slices.Sort(names)
		if !slices.Equal(got, names) {
			t.Errorf("%s sees %v, want %v", scope, got, names)
		}
		if _, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "delete_snapshot",
			Arguments: args{"tag": "a.b"}}); err == nil {
			t.Errorf("%s may call delete_snapshot", scope)
		}
	}
}

// The tools of forkd-mcp, a package of forkd 0.5, have the same effect as in forkd 0.5.
func TestToolsOf05(t *testing.T) {
	rig := start(t)
	c := connect(t, rig.Client, mcp.Admin)
	id := c.spawn()
	var boxes struct{ Result []client.Sandbox }
	if c.call("list_sandboxes", nil, &boxes); len(boxes.Result) != 1 || boxes.Result[0].ID != id {
		t.Errorf("list_sandboxes: %+v", boxes)
	}
	var snapshots struct{ Result []client.Snapshot }
	if c.call("list_snapshots", nil, &snapshots); len(snapshots.Result) != 1 || snapshots.Result[0].Tag != "a.b" {
		t.Errorf("list_snapshots: %+v", snapshots)
	}
	var pong client.Pong
	if c.call("ping_sandbox", args{"sandbox_id": id}, &pong); !pong.Pong {
		t.Errorf("ping_sandbox: %+v", pong)
	}
	log := filepath.Join(t.TempDir(), "log")
	var ran struct {
		Stdout, Stderr string
		ExitCode       int `json:"exit_code"`
	}
	c.call(
		"exec_command",
		args{"sandbox_id": id, "args": []string{"sh", "-c", "echo READY >" + log + "; echo hi; echo no >&2; exit 4"}},
		&ran,
	)
	if ran.Stdout != "hi\n" || ran.Stderr != "no\n" || ran.ExitCode != 4 {
		t.Errorf("exec_command: %+v", ran)
	}
	var found struct {
		Found       bool
		LastExcerpt string `json:"last_excerpt"`
	}
	if c.call("wait_for_text", args{"sandbox_id": id, "path": log, "marker": "READY"}, &found); !found.Found {
		t.Errorf("wait_for_text: %+v", found)
	}
	if c.call("wait_for_text", args{"sandbox_id": id, "path": log, "marker": "NEVER", "timeout_secs": 0.2},
		&found); found.Found ||
		found.LastExcerpt != "READY\n" {
		t.Errorf("wait_for_text for what never comes: %+v", found)
	}
	var evaluated client.EvalResult
	if c.call("eval_code", args{"sandbox_id": id, "code": "6 * 7"}, &evaluated); evaluated.Result == nil ||
		*evaluated.Result != "42" {
		t.Errorf("eval_code: %+v", evaluated)
	}
	for _, options := range []args{{}, {"diff": true}, {"measure_diff": true}, {"mode": "full"}, {"mode": "live",
		"wait": false}} {
		var s client.Snapshot
		options["sandbox_id"] = id
		if c.call("branch_sandbox", options, &s); s.Tag == "" || s.SandboxID != id {
			t.Errorf("branch_sandbox %v: %+v", options, s)
		}
	}
	c.fails("branch_sandbox", args{"sandbox_id": id, "mode": "full", "diff": true}, "mode")
	var baked client.Baked
	if c.call("create_snapshot", args{"tag": "made", "kernel": rig.Parent.Kernel, "rootfs": rig.Parent.Rootfs,
		"rw": true, "boot_wait_secs": 1}, &baked); baked.Status != "ready" {
		t.Errorf("create_snapshot: %+v", baked)
	}
	var gone struct {
		ID     string
		Killed bool
	}
	if c.call("kill_sandbox", args{"sandbox_id": id}, &gone); gone.ID != id || !gone.Killed {
		t.Errorf("kill_sandbox: %+v", gone)
	}
	c.fails("get_sandbox", args{"sandbox_id": id}, "404", "sandbox_not_found", "fix: ")
}

// A model receives an error of the API as text. A program also receives the error as structured
// data.
func TestErrors(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Admin)
	r := c.fails(
		"spawn_sandboxes",
		args{"snapshot_tag": "none"},
		"404 snapshot_not_found",
		`"none"`,
		"fix: list snapshots",
		"tools: list_snapshots",
	)
	p, err := json.Marshal(r.Meta[mcp.ProblemKey])
	if err != nil {
		t.Fatal(err)
	}
	var problem mcp.Problem
	if err := json.Unmarshal(p, &problem); err != nil || problem.Code != "snapshot_not_found" || problem.Status != 404 ||
		problem.Fix == "" ||
		problem.Detail == "" {
		t.Errorf("%s: %+v, %v", p, problem, err)
	}
	if r.StructuredContent != nil {
		t.Errorf("an error has the output %v", r.StructuredContent)
	}
	r = c.fails("branch", args{"sandbox_id": c.spawn(), "tag": ".."}, "400 invalid_field", "field: tag")
	if p, _ := json.Marshal(r.Meta[mcp.ProblemKey]); !bytes.Contains(p, []byte(`"field":"tag"`)) {
		t.Errorf("a wrong field: %s", p)
	}
	c.fails("spawn_sandboxes", args{"snapshot_tag": "a.b", "n": 1001}, "n", "1000")
	c.fails("spawn_sandboxes", args{"snapshot_tag": "a.b", "count": 1}, "count")
	c.fails("exec_command", args{"args": []string{"ls"}}, "sandbox_id")
	c.fails("exec_command", args{"sandbox_id": "sb-x", "args": []string{}}, "args")
	c.fails("set_state", args{"sandbox_id": "sb-x", "state": "asleep"}, "state")
	c.fails("get_sandbox", args{"sandbox_id": ""}, "empty")
	c.fails("fork_and_run", args{"sandbox_id": "sb-x"}, "400 invalid_field: commands: is missing", "field: commands")
	// The error also says which steps have been done.
	c.fails(
		"branch",
		args{"sandbox_id": c.spawn(), "tag": "made", "n": 1, "labels": args{"": "x"}},
		"the snapshot made was made, but its children were not",
		"field: labels",
	)
	c.fails("fork_and_run", args{"sandbox_id": "sb-x", "commands": []string{"a"}, "command": "b"}, "command: give either")
}

// TestBranching covers a branch, its children, a rollback, and the resulting tree.
func TestBranching(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Admin)
	id, other := c.spawn(), c.spawn()
	var kids struct {
		Sandboxes []struct {
			SandboxID string `json:"sandbox_id"`
		}
	}
	if c.call("fork", args{"sandbox_id": id, "n": 2, "labels": args{"a": "b"}}, &kids); len(kids.Sandboxes) != 2 {
		t.Errorf("fork: %+v", kids)
	}
	var b struct {
		Tag       string
		Sandboxes []struct {
			SandboxID string `json:"sandbox_id"`
		}
	}
	if c.call("branch", args{"sandbox_id": id, "tag": "safe", "n": 1}, &b); b.Tag != "safe" || len(b.Sandboxes) != 1 {
		t.Errorf("branch: %+v", b)
	}
	var back struct {
		RolledBackTo string `json:"rolled_back_to"`
	}
	if c.call("rollback", args{"sandbox_id": id, "to": "safe"}, &back); back.RolledBackTo != "safe" {
		t.Errorf("rollback: %+v", back)
	}
	r := c.call("tree", args{"sandbox_id": id}, nil)
	for _, want := range []string{"snapshot a.b", "  sandbox " + id, "snapshot safe"} {
		if !strings.Contains(text(r), want) {
			t.Errorf("tree has no %q:\n%s", want, text(r))
		}
	}
	if all := c.call("tree", nil, nil); !strings.Contains(text(all), other) || strings.Contains(text(r), other) ||
		!strings.Contains(text(r), kids.Sandboxes[0].SandboxID) {
		t.Errorf("the whole tree:\n%s\nand that of %s:\n%s", text(all), id, text(r))
	}
	for _, state := range []string{"paused", "running", "suspended", "running"} {
		var s struct{ State string }
		for range 2 { // the second call has nothing to do
			if c.call("set_state", args{"sandbox_id": id, "state": state}, &s); s.State != state {
				t.Errorf("set_state %s: %+v", state, s)
			}
		}
	}
	c.fails("delete_snapshot", args{"tag": "a.b"}, "snapshot_in_use")
}

// fork_and_run compares the attempts, keeps the copy with the best attempt, and removes the other
// copies.
func TestForkAndRun(t *testing.T) {
	rig := start(t)
	c := connect(t, rig.Client, mcp.Admin)
	id := c.spawn()
	for name, test := range map[string]struct {
		in           args
		winner, left int
		want         string
	}{
		"best by score": {args{"commands": []string{"echo a", "echo 3 >/dev/null; echo b", "exit 3"},
			"score": `echo x; [ "$FORKD_ATTEMPT" = 2 ] && echo 10 || echo 9.5`},
			2, 1, "score 10"},
		"best by time": {args{"commands": []string{"sleep 5", "exit 1", "true"}}, 3, 1, "the fastest of the 2"},
		"first": {args{"commands": []string{"sleep 60", "sleep 0.1; exit 0", "sleep 60"}, "keep": "first"}, 2, 1,
			"stopped"},
		"none":          {args{"command": `echo "attempt $FORKD_ATTEMPT"`, "attempts": 3, "keep": "none"}, 0, 0, "attempt 3"},
		"all":           {args{"command": "true", "attempts": 2, "keep": "all"}, 0, 2, "exit code 0"},
		"nobody":        {args{"command": "exit 9", "attempts": 2}, 0, 0, "no attempt exited with 0"},
		"a broken one":  {args{"commands": []string{"kill -9 $$", "sleep 5"}, "timeout_secs": 1}, 0, 0, "timed_out"},
		"a wrong score": {args{"command": "true", "score": "echo great"}, 1, 1, "the last line of its output is no number"},
	} {
		t.Run(name, func(t *testing.T) {
			before := sandboxes(t, rig)
			var got struct {
				Winner    int
				SandboxID string `json:"sandbox_id"`
				Attempts  []struct {
					SandboxID string `json:"sandbox_id"`
				}
			}
			test.in["sandbox_id"] = id
			r := c.call("fork_and_run", test.in, &got)
			if got.Winner != test.winner || !strings.Contains(text(r), test.want) {
				t.Errorf("winner %d, want %d; want %q in\n%s", got.Winner, test.winner, test.want, text(r))
			}
			after := sandboxes(t, rig)
			if len(after) != len(before)+test.left {
				t.Errorf("%d sandboxes are left, want %d", len(after)-len(before), test.left)
			}
			if test.winner > 0 && (got.SandboxID == "" || !slices.Contains(after, got.SandboxID)) {
				t.Errorf("the winner %q is not there", got.SandboxID)
			}
		})
	}
	if len(c.progress) == 0 {
		t.Error("no progress was told")
	}
}

// If the caller leaves, fork_and_run removes all copies.
func TestForkAndRunIsCleanedUp(t *testing.T) {
	rig := start(t)
	c := connect(t, rig.Client, mcp.Run)
	id := c.spawn()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for len(sandboxes(t, rig)) < 4 {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	if r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "fork_and_run", Arguments: args{"sandbox_id": id,
		"command": "sleep 60", "attempts": 3}}); err == nil {
		t.Errorf("answered: %s", text(r))
	}
	for begun := time.Now(); len(sandboxes(t, rig)) > 1; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatalf("left: %v", sandboxes(t, rig))
		}
	}
}

func sandboxes(t *testing.T, rig *apirig.Rig) (ids []string) {
	list, err := rig.Sandboxes(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Error(err)
	}
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}
