package v1_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// The agent, the daemon and the client pass on the output of a command unchanged.
func TestExecKeepsBytes(t *testing.T) {
	cl, url, id := forked(t)
	var random [100_000]byte
	rand.Read(random[:])
	file := filepath.Join(t.TempDir(), "random")
	if err := os.WriteFile(file, random[:], 0o644); err != nil {
		t.Fatal(err)
	}
	script := "cat " + file + "; cat " + file + " >&2"
	r, err := cl.Exec(t.Context(), id, client.ExecRequest{Args: []string{"sh", "-c", script}})
	if err != nil || r.Stdout != string(random[:]) || r.Stderr != string(random[:]) {
		t.Errorf("the client's exec: %d and %d bytes, %v", len(r.Stdout), len(r.Stderr), err)
	}
	var stdin bytes.Buffer
	end, err := cl.ExecStream(t.Context(), id, client.ExecRequest{Args: []string{"cat"}, Stdin: random[:]}, &stdin, &stdin)
	if err != nil || end.ExitCode != 0 || !bytes.Equal(stdin.Bytes(), random[:]) {
		t.Errorf("input and output: %d bytes, %+v, %v", stdin.Len(), end, err)
	}
	body, err := json.Marshal(map[string]any{"args": []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	_, answer := post(t, url+"/v1/sandboxes/"+id+"/exec", string(body))
	for _, field := range []string{"stdout_base64", "stderr_base64"} {
		if p, err := base64.StdEncoding.DecodeString(fmt.Sprint(answer[field])); err != nil || !bytes.Equal(p, random[:]) {
			t.Errorf("%s of a whole answer: %d bytes, %v", field, len(p), err)
		}
	}
	if _, answer := post(t, url+"/v1/sandboxes/"+id+"/exec", `{"args":["echo","ü"]}`); answer["stdout"] != "ü\n" ||
		answer["stdout_base64"] != nil {
		t.Errorf("text: %v", answer)
	}
}

// A command with endless output is stopped by the output limit, not by the timeout.
func TestExecEndsAtATotal(t *testing.T) {
	cl, url, id := forked(t)
	if _, answer := post(t, url+"/v1/sandboxes/"+id+"/exec",
		`{"args":["cat","/dev/zero"],"timeout_secs":3600}`); answer["outcome"] != "signaled" ||
		answer["exit_code"] != 137.0 || answer["stdout_truncated"] != true || answer["timed_out"] != false {
		delete(answer, "stdout")
		t.Errorf("a whole answer: %v", answer)
	}
	r, err := cl.Exec(t.Context(), id, client.ExecRequest{Args: []string{"cat", "/dev/zero"}, TimeoutSecs: 3600})
	if err != nil || r.Outcome != "signaled" || r.ExitCode != 137 || !r.StdoutTruncated {
		t.Errorf("the client's: %+v, %v", r.ExecEnd, err)
	}
}

// An error before the command has started determines the HTTP status, even if a stream was
// requested.
func TestExecStreamErrors(t *testing.T) {
	cl, _, id := forked(t)
	for _, c := range []struct {
		id   string
		req  client.ExecRequest
		want int
	}{
		{"sb-none", client.ExecRequest{Args: []string{"true"}}, 404},
		{id, client.ExecRequest{Args: []string{"true"}, User: "no-such-user"}, 400},
		{id, client.ExecRequest{}, 400},
	} {
		if _, err := cl.ExecStream(t.Context(), c.id, c.req, nil, nil); !client.IsStatus(err, c.want) {
			t.Errorf("%+v: %v, want status %d", c.req, err, c.want)
		}
	}
}

// If a command timed out because its sandbox was paused, the error says that the sandbox was
// paused. It does not say that the command was slow.
func TestTimeoutOfAPausedSandbox(t *testing.T) {
	cl, _, id := forked(t)
	marker := filepath.Join(t.TempDir(), "runs") // the faked guest uses the host's file system
	failed := make(chan error, 2)
	ask := client.ExecRequest{Args: []string{"sh", "-c", "echo >> " + marker + "; exec sleep 1000"}, TimeoutSecs: 3}
	go func() { _, err := cl.Exec(t.Context(), id, ask); failed <- err }()
	go func() {
		p, err := cl.StartExec(t.Context(), id, ask)
		if err == nil {
			_, err = p.Wait(io.Discard, io.Discard)
		}
		failed <- err
	}()
	for {
		if p, _ := os.ReadFile(marker); len(p) == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := cl.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var e *client.Error
		if err := <-failed; !errors.As(err, &e) || e.Code != "sandbox_state" || !strings.Contains(err.Error(), "paused") {
			t.Errorf("%v", err)
		}
	}
}
