package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// TestReadmeSession types the first session of README.md into a shell and compares the output of
// the commands. (Package lint checks that the file with the session equals README.md.) The
// session's first command builds a snapshot. The build would need a package manager, so the test
// skips this command. Instead, it compacts the snapshot that the tests share to a snapshot with the
// name that the command would use.
func TestReadmeSession(t *testing.T) {
	d := load(t).start(t, withPool(0))
	d.cli(t, 0, "snapshot-compact", "--from", tag, "--to", "python-numpy")
	d.session(t, "testdata/session.txt", "forkd build python-numpy ")
	d.cli(t, 0, "kill", "--all")
	d.cli(t, 0, "rmi", "crossroads")
	d.cli(t, 0, "rmi", "python-numpy")
}

// TestQuickStartOf05 follows the quick start of forkd 0.5. It types the commands that still exist,
// and sends the request for five sandboxes. Where forkd 0.5 used the name of a child, the test uses
// a sandbox's id.
func TestQuickStartOf05(t *testing.T) {
	d := load(t).start(t, withPool(0))
	d.cli(t, 0, "snapshot-compact", "--from", tag, "--to", "pyagent")
	d.session(t, "testdata/quickstart.txt", "")
	d.cli(t, 0, "kill", "--all")

	var sandboxes []client.Sandbox
	body := d.request(t, http.MethodPost, "/v1/sandboxes", http.StatusCreated,
		`{"snapshot_tag":"pyagent","n":5,"per_child_netns":true,"memory_limit_mib":256}`)
	if err := json.Unmarshal(body, &sandboxes); err != nil || len(sandboxes) != 5 {
		t.Errorf("the request for 5 sandboxes was answered with %s: %v", body, err)
	}
	if m := d.request(t, http.MethodGet, "/metrics", http.StatusOK, ""); !bytes.Contains(m,
		[]byte("\nforkd_sandboxes_active 5\n")) {
		t.Errorf("/metrics has no line forkd_sandboxes_active 5:\n%s", m)
	}
	d.cli(t, 0, "kill", "--all")
	d.cli(t, 0, "rmi", "pyagent")
}

// session types the lines of a file that begin with "$ " into a shell. It skips the commands that
// begin with the given text. The other lines are the expected output.
func (d *daemon) session(t *testing.T, file, without string) {
	t.Helper()
	session, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var commands, want strings.Builder
	for line := range strings.Lines(string(session)) {
		command, typed := strings.CutPrefix(line, "$ ")
		switch {
		case typed && without != "" && strings.HasPrefix(command, without):
		case typed:
			commands.WriteString(command)
		default:
			want.WriteString(line)
		}
	}
	if strings.Count(commands.String(), "\n") < 5 || want.Len() == 0 {
		t.Fatalf("the session has the commands %q and prints %q", &commands, &want)
	}
	shell := exec.CommandContext(d.ctx(t, bakeLimit), "sh", "-ec", commands.String())
	shell.Env = append(os.Environ(), "PATH="+filepath.Dir(d.f.program)+":"+os.Getenv("PATH"),
		"FORKD_URL=unix://"+filepath.Join(d.run, "forkd.sock"))
	var out, messages bytes.Buffer
	shell.Stdout, shell.Stderr = &out, &messages
	if err := shell.Run(); err != nil {
		t.Errorf("the session ended with %v", err)
	}
	if out.String() != want.String() {
		t.Errorf("the session printed\n%s, and %s says\n%s", &out, file, &want)
	}
	t.Logf("messages:\n%s", &messages)
}

// request sends a request like a program without forkd's client library.
func (d *daemon) request(t *testing.T, method, path string, status int, body string) []byte {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(d.run, "forkd.sock"))
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(d.ctx(t, bakeLimit), method, "http://forkd"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s %s: %s %v\n%s", method, path, resp.Status, err, answer)
	}
	return answer
}
