package integration_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// cli runs the program like a user and checks the exit code. If code is not 0, the program must
// write a message to stderr.
func (d *daemon) cli(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(d.ctx(t, bakeLimit), d.f.program, args...)
	cmd.Env = append(os.Environ(), "FORKD_URL=unix://"+filepath.Join(d.run, "forkd.sock"))
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	runErr := cmd.Run()
	var exit *exec.ExitError
	if runErr != nil && !errors.As(runErr, &exit) {
		t.Fatal(runErr)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("forkd %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, &out, &err)
	}
	if code != 0 && !strings.HasPrefix(err.String(), "forkd: ") {
		t.Errorf("forkd %s: exit code %d and %q", strings.Join(args, " "), code, &err)
	}
	return out.String(), err.String()
}

// cliJSON runs the program with -o json and decodes the output into v.
func (d *daemon) cliJSON(t *testing.T, v any, args ...string) {
	t.Helper()
	out, _ := d.cli(t, 0, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("forkd %s: %v in %q", strings.Join(args, " "), err, out)
	}
}

// refused(words, args...) runs the program, which must fail with a message that contains all these
// words.
func (d *daemon) refused(t *testing.T, words []string, args ...string) {
	t.Helper()
	_, stderr := d.cli(t, 1, args...)
	for _, w := range words {
		if !strings.Contains(stderr, w) {
			t.Errorf("forkd %s: want %q in %q", strings.Join(args, " "), w, stderr)
		}
	}
}

// TestWorkspaceVerbs uses all commands for a workspace, from its creation to its deletion.
func TestWorkspaceVerbs(t *testing.T) {
	d := load(t).start(t, withPool(0))
	// Even if the test fails, the sandbox of the workspace must not outlive the daemon.
	t.Cleanup(func() { _ = d.DeleteWorkspace(d.ctx(t, quietLimit), "desk") })
	var ws, again client.Workspace
	d.cliJSON(t, &ws, "workspace", "create", "desk", "--snapshot", tag)
	if !strings.HasPrefix(ws.ID, "ws-") || ws.Name != "desk" || ws.Status != "running" || ws.SourceTag != tag ||
		ws.LiveSandboxID == "" || ws.StateTag != "" || ws.CreatedAt == 0 || ws.LastActive == 0 {
		t.Errorf("created: %+v", ws)
	}
	d.refused(t, []string{`"desk"`, "exists"}, "workspace", "create", "desk", "--snapshot", tag)
	d.refused(t, []string{`"none"`, "not found"}, "workspace", "create", "other", "--snapshot", "none")
	d.cli(t, 2, "workspace", "create", "other")
	d.cli(t, 2, "workspace", "suspend")
	d.cli(t, 0, "exec", ws.LiveSandboxID, "--", "sh", "-c", "echo kept >/root/note")

	d.cliJSON(t, &again, "workspace", "suspend", "desk")
	if again.ID != ws.ID || again.Status != "suspended" || again.StateTag == "" || again.LiveSandboxID != "" {
		t.Errorf("suspended: %+v", again)
	}
	d.refused(t, []string{"suspend", "it is suspended"}, "workspace", "suspend", "desk")
	d.refused(t, []string{"in use by 1 sandbox;"}, "rmi", again.StateTag)
	if out, _ := d.cli(t, 0, "workspace", "list"); !strings.Contains(out, "desk") || !strings.Contains(out, "suspended") {
		t.Errorf("list: %q", out)
	}

	layer := filepath.Join(d.state, "snapshots", again.StateTag, "memory.layer")
	if err := os.Rename(layer, layer+".away"); err != nil {
		t.Fatal(err)
	}
	d.refused(t, []string{again.StateTag, "memory.layer", "missing"}, "workspace", "resume", "desk")
	var list []client.Workspace
	d.cliJSON(t, &list, "workspace", "list")
	if len(list) != 1 || list[0] != again {
		t.Errorf("after a resume that failed: %+v, before %+v", list, again)
	}
	if err := os.Rename(layer+".away", layer); err != nil {
		t.Fatal(err)
	}
	again = client.Workspace{}
	d.cliJSON(t, &again, "workspace", "resume", "desk")
	if again.Status != "running" || again.LiveSandboxID != ws.LiveSandboxID {
		t.Errorf("resumed: %+v", again)
	}
	if out, _ := d.cli(t, 0, "exec", ws.LiveSandboxID, "--", "cat", "/root/note"); out != "kept\n" {
		t.Errorf("resumed with %q", out)
	}
	d.cli(t, 0, "workspace", "resume", "desk") // has no effect, because the sandbox is running
	d.cli(t, 0, "workspace", "delete", "desk")
	d.refused(t, []string{`"desk"`, "not found"}, "workspace", "delete", "desk")
	d.refused(t, []string{`"desk"`, "not found"}, "workspace", "resume", "desk")
	d.only(t)
	d.cliJSON(t, &list, "workspace", "list")
	if len(list) != 0 {
		t.Errorf("after deleting: %+v", list)
	}
}

// TestSnapshotVerbs makes, describes, compacts and removes chains of snapshots with the CLI.
func TestSnapshotVerbs(t *testing.T) {
	d := load(t).start(t, withPool(0))
	var s client.Snapshot
	d.cliJSON(t, &s, "snapshot-diff", "--from", tag, "--tag", "d1", "--exec", "echo one >/root/one")
	if s.Tag != "d1" || s.BranchedFrom != tag || s.Mode != "diff" || s.Status != "ready" || s.PauseMS == nil ||
		s.DiffBytes == nil {
		t.Errorf("snapshot-diff: %+v", s)
	}
	if out, stderr := d.cli(t, 0, "snapshot-diff", "--from", "d1", "--tag", "d2", "--exec",
		"echo two >/root/two"); out != "d2\n" ||
		!strings.Contains(stderr, "branched; the sandbox was paused") {
		t.Errorf("snapshot-diff: %q %q", out, stderr)
	}
	d.refused(t, []string{"exit code 3", "oops"}, "snapshot-diff", "--from", tag, "--tag", "bad", "--exec",
		"echo oops >&2; exit 3")
	d.refused(t, []string{`"d2"`, "exists"}, "snapshot-diff", "--from", tag, "--tag", "d2", "--exec", "true")
	d.cli(t, 2, "snapshot-diff", "--from", tag, "--tag", "bad")
	d.only(t) // fails if one of the commands has left a sandbox
	d.refused(t, []string{`"bad"`, "not found"}, "snapshot-info", "bad")

	var info client.SnapshotDetail
	d.cliJSON(t, &info, "snapshot-info", "d2")
	if info.ParentTag != "d1" || info.ChainDepth != 2 || strings.Join(info.Ancestors, " ") != tag+" d1" ||
		info.MemoryLogical != 192<<20 {
		t.Errorf("snapshot-info: %+v", info)
	}
	if out, _ := d.cli(t, 0, "snapshot-info", "d1"); !strings.Contains(out, "dependents") || !strings.Contains(out, "d2") {
		t.Errorf("snapshot-info: %q", out)
	}
	d.cliJSON(t, &s, "snapshot-compact", "--from", "d2", "--to", "flat")
	if s.Tag != "flat" || s.BranchedFrom != "compact:d2" {
		t.Errorf("snapshot-compact: %+v", s)
	}
	d.refused(t, []string{`"flat"`, "exists"}, "snapshot-compact", "--from", "d2", "--to", "flat")
	d.removeVerbs(t)
	out, _ := d.cli(t, 0, "images")
	if strings.Contains(out, "d1") || !strings.Contains(out, tag) {
		t.Errorf("images: %q", out)
	}
}

// removeVerbs removes snapshots: d1 and d2, which build on the parent, and flat, which was
// compacted from d2.
func (d *daemon) removeVerbs(t *testing.T) {
	t.Helper()
	var forked client.Forked
	d.cliJSON(t, &forked, "fork", "d2")
	if len(forked.Sandboxes) != 1 {
		t.Fatalf("fork: %+v", forked)
	}
	id := forked.Sandboxes[0].ID
	d.refused(t, []string{`"d2"`, "in use by 1 sandbox; kill it first"}, "rmi", "d2")
	d.refused(t, []string{`"d1"`, "d2 builds on it"}, "rmi", "d1")
	d.refused(t, []string{`"d2"`, "in use by 1 sandbox"}, "rmi", "--cascade", "d1")
	d.cli(t, 2, "rmi", "--cascade", "--force", "d1")
	d.cli(t, 2, "rmi")
	d.cli(t, 0, "kill", id)

	var removed struct{ Removed []string }
	d.cliJSON(t, &removed, "rmi", "--force", "d1")
	if strings.Join(removed.Removed, " ") != "d1" {
		t.Errorf("rmi --force: %+v", removed)
	}
	for _, name := range []string{"d2", "flat"} { // these snapshots do not depend on d1
		d.cliJSON(t, &forked, "fork", name)
		id := forked.Sandboxes[0].ID
		if out, _ := d.cli(t, 0, "exec", id, "--", "cat", "/root/one", "/root/two"); out != "one\ntwo\n" {
			t.Errorf("%s has %q", name, out)
		}
		d.cli(t, 0, "kill", id)
	}
	d.cli(t, 0, "snapshot-diff", "--from", "d2", "--tag", "d3", "--exec", "true")
	d.cli(t, 0, "rmi", "--cascade", "d2")
	d.refused(t, []string{`"d3"`, "not found"}, "rmi", "d3")
	out, stderr := d.cli(t, 1, "rmi", "none", "flat", "-o", "json")
	if !strings.Contains(stderr, `"none"`) || !strings.Contains(out, `"flat"`) || strings.Contains(out, "none") {
		t.Errorf("rmi of one that exists and one that does not: %q %q", out, stderr)
	}
}
