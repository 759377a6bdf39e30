package sshd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/sshd"
)

func TestCommands(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	c := r.client()
	for _, test := range []struct {
		command, stdin, stdout, stderr string
		code                           int
		signal                         string
	}{
		{command: "echo a b; echo c >&2", stdout: "a b\n", stderr: "c\n"},
		{command: "cat; exit 7", stdin: "in", stdout: "in", code: 7},
		{command: `printf %s "$SHELL" | grep -c /`, stdout: "1\n"},
		{command: "kill -TERM $$; sleep 10", signal: "TERM"},
		{command: "no-such-command", stderr: "not found", code: 127},
		{command: "head -c 3000000 /dev/zero | tr '\\0' x", stdout: strings.Repeat("x", 3_000_000)},
	} {
		s := r.session(c)
		var stdout, stderr bytes.Buffer
		s.Stdin, s.Stdout, s.Stderr = strings.NewReader(test.stdin), &stdout, &stderr
		err := s.Run(test.command)
		code, signal := 0, ""
		var exit *ssh.ExitError
		if errors.As(err, &exit) {
			code, signal = exit.ExitStatus(), exit.Signal()
		} else if err != nil {
			t.Errorf("%s: %v", test.command, err)
		}
		if test.signal != "" {
			code = 0 // package ssh adds 128 to the signal
		}
		if stdout.String() != test.stdout || !strings.Contains(stderr.String(), test.stderr) || code != test.code ||
			signal != test.signal {
			t.Errorf("%s: %.100q, %q, %d, %q", test.command, stdout.String(), stderr.String(), code, signal)
		}
	}
}

func TestEnvironment(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	c := r.client()
	s := r.session(c)
	if err := s.Setenv("LC_FORKD", "a b"); err != nil {
		t.Error(err)
	}
	for name, value := range map[string]string{"A=B": "x", "": "x", "NUL": "a\x00b", "1A": "x",
		"LARGE": strings.Repeat("x", 40<<10)} {
		if s.Setenv(name, value) == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	refused := 0
	for i := range 100 {
		if s.Setenv(fmt.Sprintf("V%d", i), "x") != nil {
			refused++
		}
	}
	if out, err := s.Output("echo $LC_FORKD $V0; env | grep -c '^V[0-9]'"); string(out) != "a b x\n63\n" || refused != 37 {
		t.Errorf("%q, %v, %d refused", out, err, refused)
	}
}

func TestTerminal(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	s := r.session(r.client())
	if err := s.RequestPty("xterm-kitty", 33, 111, ssh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	var out buffer
	s.Stdout = &out
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("trap 'echo changed $(stty size)' WINCH; echo $TERM $(stty size); while read l; do echo got $l; done; exit 3"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the size", out.has("xterm-kitty 33 111\r\n"))
	if err := s.WindowChange(44, 99); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, "a line")
	eventually(t, "the line", out.has("got a line\r\n"))
	eventually(t, "the new size", func() bool {
		fmt.Fprintln(in) // if the signal arrives while the shell begins to read, the trap runs only after a line
		return out.has("changed 44 99\r\n")()
	})
	in.Close() // sends Ctrl-D
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 3 {
		t.Error(err)
	}
	for what, payload := range map[string][]byte{
		"size":  ssh.Marshal(struct{ Cols, Rows, W, H uint32 }{1 << 20, 1, 0, 0}),
		"short": {0, 0},
	} {
		s := r.session(r.client())
		if ok, err := s.SendRequest("window-change", true, payload); ok || err != nil {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
	}
}

func TestShell(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	s := r.session(r.client())
	s.Stdin = strings.NewReader("echo one\necho $((1+1))\nexit 4\n")
	var out bytes.Buffer
	s.Stdout = &out
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 4 || !strings.Contains(out.String(), "one\n2\n") {
		t.Errorf("%v, %q", err, out.String())
	}
}

func TestSignal(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	s := r.session(r.client())
	var out buffer
	s.Stdout = &out
	if err := s.Start("trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.1; done"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the start", out.has("ready\n"))
	if err := s.Signal("NONE"); err != nil { // no answer is defined for an unknown signal
		t.Error(err)
	}
	if err := s.Signal(ssh.SIGUSR1); err != nil {
		t.Error(err)
	}
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 5 || !strings.Contains(out.String(), "caught") {
		t.Errorf("%v, %q", err, out.String())
	}
}

// If a client leaves, its process receives SIGHUP. Processes in the background continue.
func TestClientLeaves(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	dir := t.TempDir()
	c := r.client()
	s := r.session(c)
	var out buffer
	s.Stdout = &out
	script := fmt.Sprintf("trap 'echo > %[1]s/hangup; exit' HUP; (sleep 1; echo > %[1]s/background) >/dev/null 2>&1 & "+
		"echo ready; while :; do sleep 0.1; done", dir)
	if err := s.Start(script); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the start", out.has("ready\n"))
	c.Close()
	for _, name := range []string{"hangup", "background"} {
		eventually(t, name, func() bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		})
	}
	eventually(t, "the end of the process", func() bool {
		list, err := r.Processes(t.Context(), r.id)
		return err == nil && len(list) == 0
	})
}

func TestForward(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	c := r.client()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a server in the guest
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				got, _ := io.ReadAll(conn) // until the client's direction ends
				fmt.Fprintf(conn, "got %s", got)
			}()
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]"} {
		conn, err := c.Dial("tcp", fmt.Sprintf("%s:%d", host, port))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "hello")
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(conn); string(got) != "got hello" {
			t.Errorf("%s: %q, %v", host, got, err)
		}
		conn.Close()
	}
	for addr, words := range map[string]string{
		"10.0.0.1:80": "only localhost", "example.com:80": "only localhost", "127.0.0.2:80": "only localhost",
		"localhost:1": "no server listens",
	} {
		if conn, err := c.Dial("tcp", addr); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, %v", addr, conn, err)
		}
	}
	if l, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Errorf("the server listens for the client at %v", l.Addr())
	}
}

// If a sandbox is deleted, suspended or rolled back, its sessions end with a message.
func TestCutOff(t *testing.T) {
	for name, cut := range map[string]func(*rig) error{
		"deleted":     func(r *rig) error { return r.Kill(t.Context(), r.id) },
		"rolled back": func(r *rig) error { _, err := r.Rollback(t.Context(), r.id, ""); return err },
		"suspended":   func(r *rig) error { _, err := r.Suspend(t.Context(), r.id); return err },
	} {
		r := start(t, apirig.Options{}, sshd.Limits{})
		s := r.session(r.client())
		var out, stderr buffer
		s.Stdout, s.Stderr = &out, &stderr
		if err := s.Start("echo ready; exec sleep 100"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the start", out.has("ready\n"))
		if err := cut(r); err != nil {
			t.Fatal(err)
		}
		var exit *ssh.ExitError
		if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 255 || !stderr.has("was "+name)() {
			t.Errorf("%s: %v, %q", name, err, stderr.String())
		}
	}
}

func TestSuspendedSandbox(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	c := r.client()
	suspended, err := r.Suspend(t.Context(), r.id)
	if err != nil || suspended.State != "suspended" {
		t.Fatal(suspended, err)
	}
	// A sandbox that its owner has suspended stays suspended. A session resumes only a sandbox that
	// was suspended because it was idle.
	s := r.session(c)
	var stderr bytes.Buffer
	s.Stderr = &stderr
	if err := s.Run("true"); err == nil || !strings.Contains(stderr.String(), "forkd resume "+r.id) {
		t.Errorf("%v, %q", err, stderr.String())
	}
}

// A sandbox that was suspended because it was idle is resumed by a session, and stays in use while
// the session lasts.
func TestWake(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	r.id = r.fork(client.ForkRequest{IdleTimeoutSecs: 1})
	c := r.client()
	isSuspended := func() bool {
		i, err := r.Sandbox(t.Context(), r.id)
		return err == nil && i.State == "suspended"
	}
	eventually(t, "suspended", isSuspended)
	s := r.session(c)
	if out, err := s.Output("sleep 2; echo awake"); string(out) != "awake\n" {
		t.Errorf("%q, %v", out, err)
	}
	eventually(t, "suspended again, although a client is connected", isSuspended)
}

func TestStop(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	s := r.session(r.client())
	var out, stderr buffer
	s.Stdout, s.Stderr = &out, &stderr
	if err := s.Start("trap '' HUP; echo ready; exec sleep 100"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the start", out.has("ready\n"))
	stopped := make(chan struct{})
	go func() {
		r.SSH.Stop()
		close(stopped)
	}()
	if err := s.Wait(); err == nil || !stderr.has("the daemon is stopping")() {
		t.Errorf("%v, %q", err, stderr.String())
	}
	select {
	case <-stopped:
	case <-time.After(10 * time.Second):
		t.Error("the server does not stop")
	}
	list, err := r.Processes(t.Context(), r.id)
	if err != nil || len(list) != 1 { // the process ignores SIGHUP, and the daemon does not kill it
		t.Errorf("%v, %v", list, err)
	}
}
