package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// desk is a workspace on which a scripted agent works.
type desk struct {
	*apirig.Rig
	t   *testing.T
	id  string // id of the sandbox
	dir string // working directory of the agent
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	mapGuestRAM(t)
	rig := apirig.Start(t, apirig.Options{Agent: agentHere})
	parent := rig.Parent
	parent.Tag = "base"
	if _, err := rig.Bake(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	if _, err := rig.CreateWorkspace(t.Context(), client.WorkspaceRequest{Name: "desk", SnapshotTag: "base"}); err != nil {
		t.Fatal(err)
	}
	w, err := rig.Workspace(t.Context(), "desk")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FORKD_URL", rig.URL)
	t.Setenv("FORKD_TOKEN", apirig.Token)
	t.Setenv("FORKD_CACHE", t.TempDir())
	return &desk{Rig: rig, t: t, id: w.LiveSandboxID, dir: t.TempDir()}
}

// run runs the CLI with the given arguments, and returns its output and exit code.
func (d *desk) run(stdin string, args ...string) (stdout, stderr string, code int) {
	var out, err bytes.Buffer
	code = Main(args, Stdio{In: strings.NewReader(stdin), Out: &out, Err: &err})
	return out.String(), err.String(), code
}

// ok is like run, but the command must succeed.
func (d *desk) ok(args ...string) string {
	d.t.Helper()
	out, err, code := d.run("", args...)
	if code != 0 {
		d.t.Fatalf("forkd %s: exit code %d: %s", strings.Join(args, " "), code, err)
	}
	return strings.TrimSpace(out)
}

// claude reports an event like Claude Code: as JSON, to the command of the hook.
func (d *desk) claude(event string, fields map[string]any, flags ...string) {
	d.t.Helper()
	input := map[string]any{"session_id": "8c35adc1", "transcript_path": "/home/u/.claude/projects/p/8c35adc1.jsonl",
		"cwd": d.dir, "permission_mode": "default", "hook_event_name": event}
	for k, v := range fields {
		input[k] = v
	}
	text, err := json.Marshal(input)
	if err != nil {
		d.t.Fatal(err)
	}
	out, stderr, code := d.run(string(text), append([]string{"turn", "--hook", "claude-code", "--workspace", "desk"},
		flags...)...)
	if out != "" || stderr != "" || code != 0 {
		d.t.Errorf("%s: printed %q and %q, exit code %d; an agent reads that", event, out, stderr, code)
	}
}

// bash runs a command in the workspace, like the agent's tool, and reports the call.
func (d *desk) bash(command string, flags ...string) {
	d.t.Helper()
	r, err := d.Exec(d.t.Context(), d.id, client.ExecRequest{Args: []string{"sh", "-c", command}, Cwd: d.dir,
		TimeoutSecs: 30})
	if err != nil || r.ExitCode != 0 {
		d.t.Fatalf("%s: %+v, %v", command, r, err)
	}
	d.claude("PostToolUse", map[string]any{"tool_name": "Bash", "tool_use_id": "toolu_" + command,
		"tool_input":    map[string]any{"command": command, "description": "…"},
		"tool_response": map[string]any{"stdout": "", "stderr": "", "interrupted": false}}, flags...)
}

// turn makes a complete turn of the agent: a prompt, commands, and the end. Like a hook without
// --tools, it does not report the commands.
func (d *desk) turn(prompt string, commands ...string) {
	d.t.Helper()
	d.claude("UserPromptSubmit", map[string]any{"prompt": prompt})
	for _, c := range commands {
		if _, err := d.Exec(d.t.Context(), d.id, client.ExecRequest{Args: []string{"sh", "-c", c}, Cwd: d.dir,
			TimeoutSecs: 30}); err != nil {
			d.t.Fatal(err)
		}
	}
	d.claude("Stop", map[string]any{"stop_hook_active": false})
}

// want compares the turns with lines of the form NUMBER BY MARK TEXT. The mark is * for the current
// turn and - for an undone turn.
func (d *desk) want(when string, want ...string) {
	d.t.Helper()
	var rows []turnRow
	if err := json.Unmarshal([]byte(d.ok("turns", "--workspace", "desk", "-o", "json")), &rows); err != nil {
		d.t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		mark := "+"
		switch {
		case r.Current:
			mark = "*"
		case r.Undone:
			mark = "-"
		}
		got = append(got, strings.TrimSpace(fmt.Sprint(r.Turn, " ", r.By, " ", mark, " ", r.Text)))
		if r.Tag != fmt.Sprint("desk-turn-", r.Turn) || r.MemoryBytes == 0 {
			d.t.Errorf("%s: %+v", when, r)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		d.t.Errorf("%s: the turns are\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (d *desk) wantAt(when, tag string) {
	d.t.Helper()
	s, err := d.Sandbox(d.t.Context(), d.id)
	if err != nil || s.LatestTag != tag {
		d.t.Errorf("%s: the sandbox is at %q, %v; want %q", when, s.LatestTag, err, tag)
	}
}

// An agent works in turns, and in one turn it removes everything. Turns are undone, redone, and
// replaced with other turns.
func TestUndoTheTurnsOfAnAgent(t *testing.T) {
	d := newDesk(t)
	d.turn("hello,\n  who are you?")
	d.want("after a turn without a change")
	d.turn("make a  project\nplease", "mkdir src && touch src/a")
	d.want("after the first change", "1 stop * make a project please")
	d.turn("clean up", "rm -rf src")
	d.turn("and now?")
	d.want("after rm -rf", "1 stop + make a project please", "2 stop * clean up")

	if out := d.ok("undo", "--workspace", "desk"); out != "desk-turn-1" {
		t.Errorf("undo printed %q", out)
	}
	d.wantAt("undone", "desk-turn-1")
	d.want("undone", "1 stop * make a project please", "2 stop - clean up")
	d.ok("redo", "--workspace", "desk")
	d.wantAt("redone", "desk-turn-2")
	if out := d.ok("undo", "2", "--workspace", "desk"); out != "base" {
		t.Errorf("undo of all printed %q", out)
	}
	if _, err, code := d.run("", "undo", "--workspace", "desk"); code != exitError ||
		!strings.Contains(err, "no turn of desk") {
		t.Errorf("undo at the beginning: %d, %s", code, err)
	}
	d.ok("redo", "--workspace", "desk") // towards the newest turn, one at a time
	d.wantAt("redone from the beginning", "desk-turn-1")

	d.turn("try again", "mkdir -p src")
	d.want("another way", "1 stop + make a project please", "2 stop - clean up", "3 stop * try again")
	if _, err, code := d.run("", "redo", "--workspace", "desk"); code != exitError || !strings.Contains(err, "0 turns") {
		t.Errorf("redo after another turn: %d, %s", code, err)
	}
	d.ok("undo", "--workspace", "desk", "--to", "2")
	d.wantAt("at a turn of the other way", "desk-turn-2")
	d.ok("undo", "--workspace", "desk")
	d.wantAt("undone on the other way", "desk-turn-1")
}

// An interrupted turn has no end. An undo first saves the changes of such a turn.
func TestUndoAnUnfinishedTurn(t *testing.T) {
	d := newDesk(t)
	d.turn("one", "true")
	d.claude("UserPromptSubmit", map[string]any{"prompt": "two"})
	d.bash("true", "--workspace", "desk", "--no-prompt") // as with --tools in the settings
	if _, err := d.Exec(t.Context(), d.id, client.ExecRequest{Args: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	out, stderr, code := d.run("", "undo", "-w", "desk")
	if out != "desk-turn-2\n" || code != 0 || !strings.Contains(stderr, "kept as desk-turn-3") {
		t.Errorf("%q, %q, %d", out, stderr, code)
	}
	d.want("undone", "1 stop + one", "2 tool *", "3 undo -")
	d.ok("undo", "-w", "desk")
	d.wantAt("undone twice", "desk-turn-1")
	d.ok("redo", "2", "-w", "desk")
	d.wantAt("redone", "desk-turn-3")
}

// Changes that a user makes between two turns are saved before the next turn.
func TestChangesBetweenTurns(t *testing.T) {
	d := newDesk(t)
	if _, err := d.Exec(t.Context(), d.id, client.ExecRequest{Args: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	d.turn("one", "true")
	d.want("a change before the first turn", "1 prompt +", "2 stop * one")
	// A branch by the user is not a turn.
	if _, err := d.Branch(t.Context(), d.id, client.BranchRequest{Tag: "mine"}); err != nil {
		t.Fatal(err)
	}
	d.turn("two", "true")
	d.want("a branch between", "1 prompt +", "2 stop + one", "3 prompt +", "4 stop * two")
}

// Writes of an idle guest count as a change only above a threshold.
func TestWritingWithoutARequest(t *testing.T) {
	d := newDesk(t)
	d.turn("one", "true")
	d.VMs.GuestDirty = quietMemoryKiB<<10 - 4096
	d.turn("two")
	d.want("idle", "1 stop * one")
	d.VMs.GuestDirty = quietMemoryKiB << 10
	d.claude("Stop", nil)
	d.want("a process in the background", "1 stop + one", "2 stop * two")
	if out := d.ok("undo", "-w", "desk"); out != "desk-turn-1" { // the guest's writes made no turn
		t.Errorf("undo went to %s", out)
	}
	d.want("undone", "1 stop * one", "2 stop - two", "3 undo -")
}

// The oldest turns are removed, but the sandbox's current turn is kept.
func TestOldTurnsAreRemoved(t *testing.T) {
	d := newDesk(t)
	for i := range 5 {
		if out := d.turnByHand("true", "--keep", "3"); out != fmt.Sprint("desk-turn-", i+1) {
			t.Errorf("turn %d: printed %q", i, out)
		}
	}
	d.want("kept", "3 hand +", "4 hand +", "5 hand *")
	if _, err, code := d.run("", "undo", "3", "-w", "desk"); code != exitError || !strings.Contains(err, "2 turns") {
		t.Errorf("beyond what was kept: %d, %s", code, err)
	}
	d.ok("undo", "2", "-w", "desk")
	d.turnByHand("true", "--keep", "1")
	d.turnByHand("true", "--keep", "1")
	d.want("only one kept, and one that the sandbox runs from", "3 hand +", "7 hand *")
}

func (d *desk) turnByHand(command string, flags ...string) string {
	d.t.Helper()
	if _, err := d.Exec(d.t.Context(), d.id, client.ExecRequest{Args: []string{command}}); err != nil {
		d.t.Fatal(err)
	}
	return d.ok(append([]string{"turn", "-w", "desk"}, flags...)...)
}

// If several hooks run at the same time, only one of them saves the turn.
func TestHooksAtOnce(t *testing.T) {
	d := newDesk(t)
	for round := range 3 {
		if _, err := d.Exec(t.Context(), d.id, client.ExecRequest{Args: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { d.claude("Stop", nil) })
		}
		all.Wait()
		if list := d.ok("turns", "-w", "desk"); strings.Count(list, "desk-turn-") != round+1 {
			t.Errorf("round %d: \n%s", round, list)
		}
	}
}

// If Codex repeats the notification for a turn, no second turn is saved.
func TestTurnsOfCodex(t *testing.T) {
	d := newDesk(t)
	notify := func(id, prompt string) {
		t.Helper()
		if _, err := d.Exec(t.Context(), d.id, client.ExecRequest{Args: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
		event := fmt.Sprintf(`{"type":"agent-turn-complete","thread-id":"b5f6c1c2","turn-id":%q,"cwd":"/p",`+
			`"input-messages":["first",%q],"last-assistant-message":"Done."}`, id, prompt)
		if out, stderr, code := d.run("", "turn", "--hook", "codex", "--workspace", "desk", event); out+stderr != "" ||
			code != 0 {
			t.Errorf("%q, %q, %d", out, stderr, code)
		}
	}
	notify("12345", "rename the foo")
	notify("12345", "rename the foo")
	notify("12346", "and the bar")
	d.want("three notifications", "1 stop + rename the foo", "2 stop * and the bar")
}

// A hook that fails prints the error and lets the agent continue. Its exit code is never 2: the
// agent would treat that code as an order.
func TestFailedHooks(t *testing.T) {
	d := newDesk(t)
	stop := `{"session_id":"s","hook_event_name":"Stop"}`
	hook := func(args ...string) []string { return append([]string{"turn", "--hook", "claude-code"}, args...) }
	for _, c := range []struct {
		name  string
		stdin string
		args  []string
		want  string
	}{
		{"no such workspace", stop, hook("--workspace", "none"), "no workspace"},
		{"an empty name", stop, hook("--workspace", ""), "workspace"},
		{"no JSON", "{", hook("-w", "desk"), "no JSON of a hook"},
		{"nothing", "", hook("-w", "desk"), "no JSON of a hook"},
		{"no event", "{}", hook("-w", "desk"), "hook_event_name"},
		{"a flag of a later version", stop, hook("-w", "desk", "--later"), "--later"},
		{"an argument", stop, hook("-w", "desk", "x"), "standard input"},
		{"another agent", stop, []string{"turn", "--hook", "other", "-w", "desk"}, `--hook "other"`},
		{"no notification", "", []string{"turn", "--hook", "codex", "-w", "desk"}, "one argument"},
		{"no daemon", stop, hook("-w", "desk", "--daemon-url", "http://127.0.0.1:1"), "refused"},
		{"too late", stop, hook("-w", "desk", "--timeout", "0.000001"), "longer than --timeout"},
	} {
		if out, err, code := d.run(c.stdin, c.args...); out != "" || code != 0 || !strings.Contains(err, c.want) {
			t.Errorf("%s: %q, %q, exit code %d; want %q", c.name, out, err, code, c.want)
		}
		if out, err, code := d.run(c.stdin, append(c.args, "--strict")...); code != exitError &&
			c.name != "a flag of a later version" {
			t.Errorf("%s, --strict: %q, %q, exit code %d", c.name, out, err, code)
		}
	}
	ignored := `{"session_id":"s","hook_event_name":"SessionStart","source":"startup"}`
	if out, err, code := d.run(ignored, hook("-w", "desk")...); out+err != "" || code != 0 {
		t.Errorf("an event for others: %q, %q, %d", out, err, code)
	}
	never, write := io.Pipe() // like an agent that does not close its end of the pipe
	defer write.Close()
	var stderr bytes.Buffer
	if code := Main(hook("-w", "desk", "--timeout", "0.05"), Stdio{In: never, Out: io.Discard, Err: &stderr}); code != 0 ||
		!strings.Contains(stderr.String(), "longer than --timeout") {
		t.Errorf("a pipe that stays open: %d, %s", code, stderr.String())
	}
	if _, err, code := d.run("", "turn", "-w", "none"); code != exitError || !strings.Contains(err, "no workspace") {
		t.Errorf("without --hook: %d, %s", code, err)
	}
}

// A hook waits while another hook saves a turn. It then finds that nothing has changed.
func TestATurnWaitsForAnother(t *testing.T) {
	d := newDesk(t)
	d.VMs.Copying = make(chan struct{})
	if _, err := d.Exec(t.Context(), d.id, client.ExecRequest{Args: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	store := &turnStore{cl: d.Client, name: "desk"}
	saved := make(chan bool, 2)
	for range 2 {
		go func() {
			_, made, err := store.save(context.WithoutCancel(t.Context()), turnEvent{by: byStop})
			if err != nil {
				t.Error(err)
			}
			saved <- made
		}()
	}
	close(d.VMs.Copying)
	if a, b := <-saved, <-saved; a == b {
		t.Errorf("saved: %v and %v; want one", a, b)
	}
}

// If a token has a label prefix, turns are saved without the agent's prompt, because the token is
// not allowed to set the label of the prompt.
func TestTurnsOfOneTeam(t *testing.T) {
	mapGuestRAM(t)
	rig := apirig.Start(t, apirig.Options{Agent: agentHere, Tokens: []auth.Token{{Name: "a", Scope: auth.Run,
		Prefix: "team-a/"}}})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(rig.URL, rig.Tokens["a"])
	if err != nil {
		t.Fatal(err)
	}
	w, err := cl.CreateWorkspace(t.Context(), client.WorkspaceRequest{Name: "team-a.desk", SnapshotTag: "a.b"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FORKD_URL", rig.URL)
	t.Setenv("FORKD_TOKEN", rig.Tokens["a"])
	t.Setenv(workspaceEnv, "team-a.desk")
	d := &desk{Rig: rig, t: t, id: w.LiveSandboxID}
	for _, event := range []string{`"UserPromptSubmit","prompt":"go"`, `"Stop"`} {
		out, stderr, code := d.run(`{"session_id":"s","hook_event_name":`+event+`}`, "turn", "--hook", "claude-code",
			"--strict")
		if out+stderr != "" || code != 0 {
			t.Errorf("%s: %q, %q, %d", event, out, stderr, code)
		}
		if _, err := cl.Exec(t.Context(), d.id, client.ExecRequest{Args: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
	}
	if out := d.ok("undo"); out != "team-a.desk-turn-1" {
		t.Errorf("undo went to %q", out)
	}
}

// A hook waits while turns of its own sandbox are saved. It does not wait for turns of another
// sandbox whose name begins with the same text.
func TestTurnsBeingSavedAreItsOwn(t *testing.T) {
	for tag, want := range map[string]bool{
		"a-turn-7": true, "a-turn-turn-7": false, "a-turn-x": false, "b-turn-7": false,
	} {
		if got := turnsOf([]client.Snapshot{{Tag: tag, Status: "writing"}}, "sb-a", "a").beingSaved(); got != want {
			t.Errorf("%s: %v, want %v", tag, got, want)
		}
	}
}

func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		" a\n\tb\x1b ":              "a b\ufffd",
		strings.Repeat("ä", 100):    strings.Repeat("ä", 58) + "…",
		"a\xff" + "b":               "ab",
		strings.Repeat("word ", 30): strings.TrimSpace(strings.Repeat("word ", 24)[:117]) + "…",
	} {
		if got := words(text); got != want || len(got) > maxTurnLabel {
			t.Errorf("%q: %q, %d bytes; want %q", text, got, len(got), want)
		}
	}
}

// If there is only one workspace, a command need not name it.
func TestTheOnlyWorkspace(t *testing.T) {
	d := newDesk(t)
	if _, err, code := d.run("", "undo"); code != exitError || !strings.Contains(err, "desk") {
		t.Errorf("%d, %s", code, err)
	}
	if _, err := d.CreateWorkspace(t.Context(), client.WorkspaceRequest{Name: "other", SnapshotTag: "base"}); err != nil {
		t.Fatal(err)
	}
	if _, err, code := d.run("", "turns"); code != exitUsage || !strings.Contains(err, "2 workspaces") {
		t.Errorf("%d, %s", code, err)
	}
	t.Setenv(workspaceEnv, "other")
	d.ok("turns")
}
