package integration_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

func TestForkEvalExecKill(t *testing.T) {
	d := load(t).start(t, withChecks)
	boxes := d.fork(t, 3)
	for i, s := range boxes {
		if s.State != "running" || s.SnapshotTag != tag || s.PID == 0 || s.ReadyMS == nil {
			t.Errorf("sandbox %d: %+v", i, s)
		}
	}
	t.Run("eval", func(t *testing.T) { testEval(t, d, boxes[0].ID) })
	t.Run("exec", func(t *testing.T) { testExec(t, d, boxes[1].ID) })
	t.Run("files", func(t *testing.T) { testFiles(t, d, boxes[2].ID) })
	t.Run("trees", func(t *testing.T) { testTrees(t, d, boxes[2].ID) })
	d.only(t, boxes...)
	d.kill(t, boxes[0])
	d.only(t, boxes[1:]...)
	_, err := d.Eval(d.ctx(t, quietLimit), boxes[0].ID, client.EvalRequest{Code: "1"})
	wantError(t, "eval in a killed sandbox", err, http.StatusNotFound, boxes[0].ID)
	err = d.Kill(d.ctx(t, quietLimit), boxes[0].ID)
	wantError(t, "kill twice", err, http.StatusNotFound, boxes[0].ID)
	d.alive(t, boxes[1].ID)
}

func testEval(t *testing.T, d *daemon, id string) {
	eval := func(req client.EvalRequest) client.EvalResult {
		t.Helper()
		r, err := d.Eval(d.ctx(t, quietLimit), id, req)
		if err != nil {
			t.Fatalf("eval %q: %v", req.Code, err)
		}
		return r
	}
	if r := eval(client.EvalRequest{Code: "x = 20\nprint('hello')\nx + 1"}); r.Result == nil || *r.Result != "21" ||
		r.Stdout != "hello\n" {
		t.Errorf("statements and an expression: %+v", r)
	}
	if r := eval(client.EvalRequest{Code: "y = x"}); r.Result != nil || r.ExitCode != 0 {
		t.Errorf("a statement: %+v", r)
	}
	if got := d.value(t, id, "np.arange(x)[y - 1].item()"); got != "19" {
		t.Errorf("state and the parent's import: %s", got)
	}
	r := eval(client.EvalRequest{Code: "def f():\n    raise ValueError('odd')\nf()"})
	if r.ExitCode != 1 || !strings.Contains(r.Error, "odd") || !strings.Contains(r.Traceback, "in f") {
		t.Errorf("an exception: %+v", r)
	}
	if r := eval(client.EvalRequest{Code: "def"}); r.ExitCode != 1 || !strings.Contains(r.Error, "SyntaxError") {
		t.Errorf("no Python: %+v", r)
	}
	if r := eval(client.EvalRequest{Code: "while True: pass", TimeoutSecs: 2}); !r.TimedOut || r.ExitCode != 124 {
		t.Errorf("an endless loop: %+v", r)
	}
	if got := d.value(t, id, "x"); got != "20" {
		t.Errorf("state after a timeout: %s", got)
	}
}

func testExec(t *testing.T, d *daemon, id string) {
	exec := func(timeout float64, args ...string) client.ExecResult {
		t.Helper()
		r, err := d.Exec(d.ctx(t, 2*quietLimit), id, client.ExecRequest{
			Args: args, TimeoutSecs: timeout, Env: map[string]string{"GREETING": "hi there"}, Cwd: "/tmp",
		})
		if err != nil {
			t.Fatalf("exec %q: %v", args, err)
		}
		return r
	}
	for _, c := range []struct {
		name    string
		timeout float64
		args    []string
		outcome string
		code    int
	}{
		{"exits", 0, []string{"/bin/sh", "-c", "exit 3"}, "exited", 3},
		{"is found in the path", 0, []string{"true"}, "exited", 0},
		{"is not found", 0, []string{"/no/such/program"}, "not_found", 127},
		{"is not executable", 0, []string{"/etc/passwd"}, "not_executable", 126},
		{"kills itself", 0, []string{"/bin/sh", "-c", "kill -9 $$"}, "signaled", 137},
		{"sleeps too long", 1, []string{"sleep", "100"}, "timeout", 124},
		{"leaves a child that holds its output", 2, []string{"/bin/sh", "-c", "sleep 100"}, "timeout", 124},
	} {
		if r := exec(c.timeout, c.args...); r.Outcome != c.outcome || r.ExitCode != c.code ||
			(r.Error == "") != (c.outcome == "exited") {
			t.Errorf("a command that %s: %+v, want %s with code %d", c.name, r, c.outcome, c.code)
		}
	}
	if r := exec(0, "/bin/sh", "-c", `echo "$GREETING"; pwd; echo oops >&2`); r.Stdout != "hi there\n/tmp\n" ||
		r.Stderr != "oops\n" {
		t.Errorf("output: %+v", r)
	}
	r := exec(90, "head", "-c", "9000000", "/dev/zero")
	if !r.StdoutTruncated || r.StderrTruncated || r.Error == "" || len(r.Stdout) != 8<<20 {
		t.Errorf("9 MB of output: truncated %t, %d bytes, error %q", r.StdoutTruncated, len(r.Stdout), r.Error)
	}
}

func testFiles(t *testing.T, d *daemon, id string) {
	content := make([]byte, 300<<10)
	rand.Read(content)
	const path = "/root/new dir/a file"
	if err := d.WriteFile(d.ctx(t, quietLimit), id, path, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	r, err := d.ReadFile(d.ctx(t, quietLimit), id, path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("read back %d of %d bytes: %v", len(got), len(content), err)
	}
	_, err = d.ReadFile(d.ctx(t, quietLimit), id, "/no/such/file")
	wantError(t, "read a file that is not there", err, http.StatusNotFound, "/no/such/file")
	if got := d.sh(t, id, "wc -c <'"+path+"'"); strings.TrimSpace(got) != "307200" {
		t.Errorf("the guest sees %q bytes", got)
	}
}
