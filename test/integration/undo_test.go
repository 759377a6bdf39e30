package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// hook reports an event to `forkd turn` in the same way as Claude Code: with the command that `forkd hook` has
// written into Claude Code's settings.
func (d *daemon) hook(t *testing.T, event string, fields map[string]string) {
	t.Helper()
	input := map[string]string{"session_id": "8c35adc1", "cwd": "/root", "hook_event_name": event}
	for k, v := range fields {
		input[k] = v
	}
	text, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(d.ctx(t, bakeLimit), d.f.program, "turn", "--hook", "claude-code", "--workspace", "desk",
		"--timeout", "2m", "--strict")
	cmd.Env = append(os.Environ(), "FORKD_URL=unix://"+filepath.Join(d.run, "forkd.sock"))
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("hook of %s: %v, %s", event, err, out)
	}
}

// agentTurn performs one turn of an agent in the workspace "desk".
func (d *daemon) agentTurn(t *testing.T, id, prompt string, commands ...string) {
	t.Helper()
	d.hook(t, "UserPromptSubmit", map[string]string{"prompt": prompt})
	for _, c := range commands {
		d.sh(t, id, c)
	}
	d.hook(t, "Stop", nil)
}

// savedTurns returns the tags of the turns and their descriptions.
func (d *daemon) savedTurns(t *testing.T) string {
	t.Helper()
	var rows []struct {
		Tag  string `json:"tag"`
		Text string `json:"text"`
	}
	d.cliJSON(t, &rows, "turns", "--workspace", "desk")
	var list []string
	for _, r := range rows {
		list = append(list, strings.TrimSpace(r.Tag+" "+r.Text))
	}
	return strings.Join(list, "; ")
}

// TestUndoTurns undoes and redoes the turns of an agent in a real VM. In one turn, the agent
// removes its work and system files with rm -rf, and kills a process. Undoing the turn restores
// files, memory and processes.
func TestUndoTurns(t *testing.T) {
	d := load(t).start(t, withPool(0))
	t.Cleanup(func() { _ = d.DeleteWorkspace(d.ctx(t, quietLimit), "desk") })
	var ws client.Workspace
	d.cliJSON(t, &ws, "workspace", "create", "desk", "--snapshot", tag)
	id := ws.LiveSandboxID
	d.hook(t, "UserPromptSubmit", map[string]string{"prompt": "hello"})
	time.Sleep(10 * time.Second) // no turn is saved in this time
	if s, err := d.Stats(d.ctx(t, quietLimit), id); err != nil {
		t.Fatal(err)
	} else {
		fmt.Printf("idle: %d KiB of memory and %d KiB of disk in 10 s\n", s.MemorySince, s.DiskSince)
	}
	d.hook(t, "Stop", nil)
	if got := d.savedTurns(t); got != "" {
		t.Errorf("a turn without a change was saved: %s", got)
	}
	d.hook(t, "UserPromptSubmit", map[string]string{"prompt": "write a program"})
	d.remember(t, id, "first")
	d.sh(t, id, "mkdir -p /root/src && seq 1000 >/root/src/data && sync")
	sum := d.sh(t, id, "sha256sum /root/src/data")
	d.hook(t, "Stop", nil)
	if got := d.savedTurns(t); got != "desk-turn-1 write a program" {
		t.Errorf("after the first turn: %s", got)
	}

	// In this time, the process that was started by remember writes ten lines a second. This is too
	// little to count as a turn.
	time.Sleep(5 * time.Second)
	if s, err := d.Stats(d.ctx(t, quietLimit), id); err != nil {
		t.Fatal(err)
	} else {
		fmt.Printf("without a request, with a loop that writes a file: %d KiB of memory and %d KiB of disk in 5 s or more\n",
			s.MemorySince, s.DiskSince)
	}
	d.agentTurn(t, id, "are you there?")
	if got := d.savedTurns(t); got != "desk-turn-1 write a program" {
		t.Errorf("after a turn without a change: %s", got)
	}
	d.agentTurn(t, id, "clean up", "kill $(cat /root/pid); rm -rf /root/* /usr/lib/python3* ; sync")
	if got := d.savedTurns(t); got != "desk-turn-1 write a program; desk-turn-2 clean up" {
		t.Errorf("after rm -rf: %s", got)
	}
	if out := d.sh(t, id, "ls /root"); out != "" {
		t.Errorf("rm -rf left %q", out)
	}

	back := func(what, want string, args ...string) {
		t.Helper()
		start := time.Now()
		if out, _ := d.cli(t, 0, append(args, "--workspace", "desk")...); strings.TrimSpace(out) != want {
			t.Errorf("%s: went to %q, want %s", what, out, want)
		}
		fmt.Printf("%s took %.1f s\n", what, time.Since(start).Seconds())
	}
	// The listing of /root has used the sandbox, so undo saves it as a turn first.
	back("undo of what came after rm -rf", "desk-turn-2", "undo")
	back("undo of rm -rf", "desk-turn-1", "undo")
	d.remembers(t, id, "first")
	if got := d.sh(t, id, "sha256sum /root/src/data"); got != sum {
		t.Errorf("the file is back as %q, it was %q", got, sum)
	}
	back("undo of looking", "desk-turn-1", "undo")
	back("redo", "desk-turn-2", "undo", "--to", "2")
	if out := d.sh(t, id, "ls /root"); out != "" {
		t.Errorf("forward again, there is %q", out)
	}
	back("undo once more", "desk-turn-1", "undo", "2") // undoes two turns: the listing, and rm -rf
	d.remembers(t, id, "first")

	d.cli(t, 0, "workspace", "suspend", "desk")
	d.cli(t, 0, "workspace", "resume", "desk")
	d.agentTurn(t, id, "go on", "echo more >>/root/src/data")
	back("undo after a suspension", "desk-turn-1", "undo", "--to", "1")
	d.remembers(t, id, "first")
	if got := d.sh(t, id, "sha256sum /root/src/data"); got != sum {
		t.Errorf("after a suspension the file is back as %q, it was %q", got, sum)
	}
	d.cli(t, 0, "workspace", "delete", "desk")
	d.removeBranches(t)
}
