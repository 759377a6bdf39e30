package v1_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/forkd/forkd/client"
)

func TestDetachedCommands(t *testing.T) {
	cl, url, id := forked(t)
	done := filepath.Join(t.TempDir(), "done")
	pid, err := cl.ExecDetached(t.Context(), id, client.ExecRequest{Args: []string{"sh", "-c",
		"read a; read b; echo $a $b; echo $a $b > " + done + "; exit 5"}, OpenStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	list, err := cl.Processes(t.Context(), id)
	if err != nil || len(list) != 1 || list[0].PID != pid || list[0].Args[0] != "sh" {
		t.Fatalf("%+v, %v", list, err)
	}
	attach := func() (*client.Process, error) { return cl.Attach(t.Context(), id, pid) }
	r := run(t, attach)
	fmt.Fprintln(r, "one")
	if err := r.Detach(); err != nil {
		t.Fatal(err)
	}
	if res := <-r.end; !errors.Is(res.err, client.ErrDetached) {
		t.Fatal(res.err)
	}
	r = run(t, attach)
	if err := cl.SendStdin(t.Context(), id, pid, strings.NewReader("two\n"), true); err != nil {
		t.Fatal(err)
	}
	r.await(t, "one two\n")
	if end := r.ended(t); end.ExitCode != 5 {
		t.Errorf("%+v", end)
	}
	if p, err := os.ReadFile(done); err != nil || string(p) != "one two\n" {
		t.Errorf("%q, %v", p, err)
	}
	for _, c := range []struct {
		path, body string
		status     int
		words      string
	}{
		{"/exec", `{"args":["no-such-command"],"detach":true}`, 400, "not found"},
		{"/exec", `{"args":["true"],"detach":true,"stdin":"eA=="}`, 400, "stdin"},
		{"/exec", `{"args":["true"],"tty":{"cols":70000}}`, 400, "70000"},
		{"/processes/x/signal", `{"signal":"TERM"}`, 400, "number"},
		{"/processes/1/signal", `{"signal":"FOO"}`, 400, "SIGTERM"},
		{"/processes/999999/signal", `{"signal":"TERM"}`, 404, "999999"},
		{"/processes/999999/resize", `{"cols":1,"rows":1}`, 404, "999999"},
	} {
		if status, body := post(t, url+"/v1/sandboxes/"+id+c.path, c.body); status != c.status ||
			!strings.Contains(fmt.Sprint(body["error"]), c.words) {
			t.Errorf("%s %s: %d %v, want %d with %q", c.path, c.body, status, body, c.status, c.words)
		}
	}
	if _, err := cl.Attach(t.Context(), id, 999_999); !client.IsNotFound(err) {
		t.Errorf("attach to no process: %v", err)
	}
}

// A client that is attached to a process with a terminal can also send input.
func TestAttachToATerminal(t *testing.T) {
	cl, _, id := forked(t)
	pid, err := cl.ExecDetached(t.Context(), id, client.ExecRequest{Args: []string{"sh", "-c",
		"read line; stty size; exec cat"}, TTY: &client.TTYSize{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.ResizeProcess(t.Context(), id, pid, client.TTYSize{Cols: 88, Rows: 22}); err != nil {
		t.Fatal(err)
	}
	r := run(t, func() (*client.Process, error) { return cl.Attach(t.Context(), id, pid) })
	fmt.Fprintln(r, "size")
	r.await(t, "size\r\n22 88\r\n")
	fmt.Fprintln(r, "echo")
	r.await(t, "echo\r\necho\r\n")
	if err := r.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if end := r.ended(t); end.ExitCode != 0 {
		t.Errorf("%+v", end)
	}
}

// A rollback ends the stream of a process, with a reason. If a process of the restored guest has
// the same process id, that process is not affected.
func TestStreamOverARollback(t *testing.T) {
	cl, _, id := forked(t)
	r := run(t, shell(cl, t.Context(), id, "echo $$; exec sleep 1000", nil))
	var pid int
	if _, err := fmt.Fscanln(r.out, &pid); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Pause(t.Context(), id); err != nil { // a pause does not affect the stream
		t.Fatal(err)
	}
	if _, err := cl.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Rollback(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	if res := <-r.end; !client.IsStatus(res.err, http.StatusConflict) ||
		!strings.Contains(res.err.Error(), "rolled back") {
		t.Errorf("%+v, %v", res.end, res.err)
	}
	// The guest of this test is an ordinary process, so a rollback does not change it.
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the process of the guest was killed: %v", err)
	}
	syscall.Kill(pid, syscall.SIGKILL)
}
