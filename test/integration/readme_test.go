package integration_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeSession types the session that README.md begins with into a shell, and compares what
// the commands print (package lint compares the file with README.md). The snapshot that its first
// command would build is made from the parent of these tests: there is no package manager where
// they run.
func TestReadmeSession(t *testing.T) {
	session, err := os.ReadFile("testdata/session.txt")
	if err != nil {
		t.Fatal(err)
	}
	var commands, want strings.Builder
	for line := range strings.Lines(string(session)) {
		command, typed := strings.CutPrefix(line, "$ ")
		switch {
		case typed && strings.HasPrefix(command, "forkd build python-numpy "):
		case typed:
			commands.WriteString(command)
		default:
			want.WriteString(line)
		}
	}
	if strings.Count(commands.String(), "\n") < 5 || want.Len() == 0 {
		t.Fatalf("the session has the commands %q and prints %q", &commands, &want)
	}

	d := load(t).start(t, withPool(0))
	d.cli(t, 0, "snapshot-compact", "--from", tag, "--to", "python-numpy")
	shell := exec.CommandContext(d.ctx(t, bakeLimit), "sh", "-ec", commands.String())
	shell.Env = append(os.Environ(), "PATH="+filepath.Dir(d.f.program)+":"+os.Getenv("PATH"),
		"FORKD_URL=unix://"+filepath.Join(d.run, "forkd.sock"))
	var out, messages bytes.Buffer
	shell.Stdout, shell.Stderr = &out, &messages
	if err := shell.Run(); err != nil {
		t.Errorf("the session ended with %v", err)
	}
	if out.String() != want.String() {
		t.Errorf("the session printed\n%s, and README.md says\n%s", &out, &want)
	}
	t.Logf("messages:\n%s", &messages)
	d.cli(t, 0, "kill", "--all")
	d.cli(t, 0, "rmi", "crossroads")
	d.cli(t, 0, "rmi", "python-numpy")
}
