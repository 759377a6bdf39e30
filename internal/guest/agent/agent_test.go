package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// recorder is an identity that records calls.
type recorder struct {
	shared []string
	calls  []string
	fail   string
}

func (r *recorder) note(call string) error {
	r.calls = append(r.calls, call)
	if call == r.fail {
		return errors.New(call + " is broken")
	}
	return nil
}

func (r *recorder) Reseed(e []byte) error      { return r.note("reseed " + string(e)) }
func (r *recorder) SetClock(ns int64) error    { return r.note("clock " + strconv.FormatInt(ns, 10)) }
func (r *recorder) SetHostname(n []byte) error { return r.note("hostname " + string(n)) }
func (r *recorder) Rehearse() error            { return r.note("rehearse") }
func (r *recorder) Shared() []string           { return r.shared }

// serve starts an agent and returns a client of it.
func serve(t *testing.T, id identity) *agentclient.Client {
	t.Helper()
	return agentclient.New(listen(t, id))
}

// listen starts an agent on unix sockets and returns a function that dials it.
func listen(t *testing.T, id identity) agentclient.DialFunc {
	t.Helper()
	dir := t.TempDir()
	a := newAgent(kmsg.NewPlain(io.Discard), reap.New(), id)
	open := unixSockets(dir)
	_, err := a.start(sockets{
		listen: func(port uint32) (net.Listener, error) {
			l, err := open.listen(port)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return l, err
		},
		forks: func(port uint32) (*forkPort, error) {
			p, err := open.forks(port)
			if err == nil {
				t.Cleanup(func() { p.Close() })
			}
			return p, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.eval.Close)
	return func(ctx context.Context, port uint32) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, strconv.Itoa(int(port))))
	}
}

func TestPingAnswersReady(t *testing.T) {
	ready, err := serve(t, nil).Ping(t.Context())
	if err != nil || ready.Version != agentproto.Version || ready.Kernel == "" {
		t.Fatalf("ready = %+v, %v", ready, err)
	}
}

func TestControlRefusesNonsense(t *testing.T) {
	c := &control{}
	for line, want := range map[string]string{
		`{`:              "control request",
		`{"op":"dance"}`: `"dance"`,
	} {
		if _, err := c.handle([]byte(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: err = %v", line, err)
		}
	}
}

func FuzzControl(f *testing.F) {
	line, _ := json.Marshal(agentproto.Request{Op: agentproto.OpPing})
	f.Add(line)
	f.Fuzz(func(t *testing.T, line []byte) {
		c := &control{}
		c.handle(line)
	})
}

func TestExecOutcomes(t *testing.T) {
	c := serve(t, nil)
	sh := func(script string) agentclient.ExecRequest {
		return agentclient.ExecRequest{Args: []string{"/bin/sh", "-c", script}}
	}
	timeout := sh("echo begun; sleep 1000")
	timeout.Timeout = 300 * time.Millisecond
	long := sh("head -c 1500 /dev/zero")
	long.MaxOutput = 1000
	for name, tc := range map[string]struct {
		req     agentclient.ExecRequest
		outcome agentclient.Outcome
		code    int
		err     error
		stdout  string
	}{
		"success":   {sh("printf out; printf err >&2"), agentclient.Exited, 0, nil, "out"},
		"exit code": {sh("exit 3"), agentclient.Exited, 3, nil, ""},
		"signal":    {sh("kill -9 $$"), agentclient.Signaled, -1, agentclient.ErrSignaled, ""},
		"timeout":   {timeout, agentclient.TimedOut, -1, agentclient.ErrTimeout, "begun\n"},
		"missing": {agentclient.ExecRequest{Args: []string{"no-such-command"}}, agentclient.NotFound, -1,
			agentclient.ErrCommandNotFound, ""},
		"not executable": {agentclient.ExecRequest{Args: []string{"/etc/passwd"}}, agentclient.NotExecutable, -1,
			agentclient.ErrNotExecutable, ""},
		"truncated": {long, agentclient.Exited, 0, agentclient.ErrOutputTruncated, strings.Repeat("\x00", 1000)},
	} {
		r, err := c.Exec(t.Context(), tc.req)
		if err != nil || r.Outcome != tc.outcome || r.ExitCode != tc.code || string(r.Stdout) != tc.stdout {
			t.Errorf("%s: %s code %d stdout %.40q, %v", name, r.Outcome, r.ExitCode, r.Stdout, err)
		}
		if !errors.Is(r.Err(), tc.err) || (tc.err == nil) != (r.Err() == nil) {
			t.Errorf("%s: Err() = %v, want %v", name, r.Err(), tc.err)
		}
	}
}

func TestExecInputAndRefusals(t *testing.T) {
	c := serve(t, nil)
	in := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	r, err := c.Exec(t.Context(), agentclient.ExecRequest{Args: []string{"cat"}, Stdin: bytes.NewReader(in)})
	if err != nil || !bytes.Equal(r.Stdout, in) {
		t.Fatalf("cat returned %d of %d bytes, %v", len(r.Stdout), len(in), err)
	}
	r, err = c.Exec(t.Context(), agentclient.ExecRequest{
		Args: []string{"sh", "-c", "pwd; echo $A"}, Cwd: "/etc", Env: map[string]string{"A": "b"},
	})
	if err != nil || string(r.Stdout) != "/etc\nb\n" {
		t.Fatalf("cwd and env: %q, %v", r.Stdout, err)
	}
	for name, req := range map[string]agentclient.ExecRequest{
		"invalid_argument": {Args: []string{"true"}, Cwd: "/no/such"},
		"unauthenticated":  {Args: []string{"true"}, User: "nobody-here"},
	} {
		_, err := c.Exec(t.Context(), req)
		var refused *agentclient.Error
		if !errors.As(err, &refused) || string(refused.Code) != name {
			t.Errorf("%s: err = %v", name, err)
		}
	}
	for _, bad := range []string{"", "A=B", "A\x00"} {
		_, err := c.Exec(t.Context(), agentclient.ExecRequest{Args: []string{"true"}, Env: map[string]string{bad: "v"}})
		var refused *agentclient.Error
		if !errors.As(err, &refused) || refused.Code != agentclient.CodeInvalid ||
			!strings.Contains(refused.Message, "environment") {
			t.Errorf("variable %q: %v", bad, err)
		}
		_, err = c.Eval(t.Context(), "1", agentclient.EvalOptions{Env: map[string]string{bad: "v"}})
		if !errors.As(err, &refused) || refused.Code != agentclient.CodeInvalid ||
			!strings.Contains(refused.Message, "environment") {
			t.Errorf("variable %q of an eval: %v", bad, err)
		}
	}
}

func TestACancelledExecEndsTheCommandsOfItsShell(t *testing.T) {
	c := serve(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group int
	_, err := c.ExecStream(ctx, agentclient.ExecRequest{Args: []string{"sh", "-c", "sleep 1000 & echo $$; wait"}},
		func(_ agentclient.Stream, p []byte) (err error) {
			group, err = strconv.Atoi(strings.TrimSpace(string(p)))
			cancel()
			return err
		})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for unix.Kill(-group, 0) == nil { // until all processes of the group have ended
		time.Sleep(time.Millisecond)
	}
}

func TestExecCancelKillsTheProcess(t *testing.T) {
	c := serve(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	marker := "sleep 98765.4321"
	_, err := c.ExecStream(ctx, agentclient.ExecRequest{Args: []string{"sh", "-c", "echo up; exec " + marker}},
		func(agentclient.Stream, []byte) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	// The brackets in the pattern keep pgrep from finding its own command line.
	for {
		r, err := c.Exec(t.Context(), agentclient.ExecRequest{Args: []string{"sh", "-c", "pgrep -f '[s]leep 98765'"}})
		if err != nil {
			t.Fatal(err)
		}
		if r.ExitCode == 1 {
			return
		}
	}
}

// slowConn is a connection on which each read first waits for a value from a channel.
type slowConn struct {
	net.Conn
	may <-chan struct{}
}

func (c slowConn) Read(p []byte) (int, error) {
	<-c.may
	return c.Conn.Read(p)
}

// If a caller is cancelled before the guest has reported the process id, the process is killed.
func TestExecCancelledBeforeItsStartIsKnown(t *testing.T) {
	dial, may := listen(t, nil), make(chan struct{})
	slow := agentclient.New(func(ctx context.Context, port uint32) (net.Conn, error) {
		conn, err := dial(ctx, port)
		return slowConn{conn, may}, err
	})
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := slow.ExecStream(ctx, agentclient.ExecRequest{Args: []string{"sh", "-c",
			"echo $$ > " + file + "; exec sleep 1000"}},
			func(agentclient.Stream, []byte) error { return nil })
		done <- err
	}()
	pid := 0
	for pid == 0 {
		p, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(p)))
		time.Sleep(time.Millisecond)
	}
	cancel()
	time.Sleep(10 * time.Millisecond) // the client must notice the cancellation before the answer arrives
	close(may)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if unix.Kill(-pid, 0) == nil {
		time.Sleep(time.Second) // time for the process to be killed
	}
	if unix.Kill(-pid, 0) == nil {
		unix.Kill(-pid, unix.SIGKILL)
		t.Errorf("process %d goes on", pid)
	}
}

func TestEvalThroughTheClient(t *testing.T) {
	c := serve(t, nil)
	ready, err := c.Ping(t.Context())
	if err != nil || len(ready.Warm) == 0 {
		t.Skipf("no warm interpreter: %v %v", ready.Errors, err)
	}
	r, err := c.Eval(t.Context(), "print('hi')\n6 * 7", agentclient.EvalOptions{})
	if err != nil || r.Result == nil || *r.Result != "42" || string(r.Stdout) != "hi\n" || r.Err() != nil {
		t.Fatalf("got %+v, %v", r, err)
	}
	r, err = c.Eval(t.Context(), "undefined_name", agentclient.EvalOptions{})
	if err != nil || r.Error == nil || r.Error.Name != "NameError" || !strings.Contains(r.Error.Traceback,
		"undefined_name") {
		t.Fatalf("got %+v, %v", r, err)
	}
	r, err = c.Eval(t.Context(), "import time\ntime.sleep(1000)", agentclient.EvalOptions{Timeout: 200 * time.Millisecond})
	if err != nil || !errors.Is(r.Err(), agentclient.ErrTimeout) {
		t.Fatalf("got %+v, %v", r, err)
	}
	r, err = c.Eval(t.Context(), "'x' * 100000", agentclient.EvalOptions{MaxOutput: 1000})
	if err != nil || !errors.Is(r.Err(), agentclient.ErrOutputTruncated) {
		t.Fatalf("got %+v, %v", r, err)
	}
	if r.Result == nil || !strings.HasPrefix(*r.Result, "'xxx") || !strings.HasSuffix(*r.Result,
		"(cut, 100002 bytes in all)") {
		t.Errorf("the result is not cut but %v", r.Result)
	}
}

func TestFilesThroughTheClient(t *testing.T) {
	c := serve(t, nil)
	path := filepath.Join(t.TempDir(), "a b", "ü.txt")
	if err := c.WriteFile(t.Context(), path, "", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	f, err := c.ReadFile(t.Context(), path, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || string(got) != "content" {
		t.Fatalf("read %q, %v", got, err)
	}
	var refused *agentclient.Error
	if _, err := c.ReadFile(t.Context(), path+".missing", ""); !errors.As(err, &refused) ||
		refused.Code != agentclient.CodeNotFound {
		t.Fatalf("missing file: %v", err)
	}
}

// rests is a file system that records the calls of Rest and Wake. Both methods return the error
// r.fails.
type rests struct {
	calls []string
	fails error
}

func (r *rests) Rest() error { r.calls = append(r.calls, "rest"); return r.fails }
func (r *rests) Wake() error { r.calls = append(r.calls, "wake"); return r.fails }

func TestFreezeOverControl(t *testing.T) {
	freeze, thaw := []byte(`{"op":"freeze"}`), []byte(`{"op":"thaw"}`)
	for _, line := range [][]byte{freeze, thaw} {
		if _, err := (&control{}).handle(line); err == nil {
			t.Errorf("%s: an agent without a disk has done it", line)
		}
	}
	r := &rests{}
	c := &control{disk: r}
	for _, line := range [][]byte{freeze, thaw} {
		if _, err := c.handle(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if want := []string{"rest", "wake"}; !slices.Equal(r.calls, want) {
		t.Errorf("%v, want %v", r.calls, want)
	}
	r.fails = errors.New("odd")
	for _, line := range [][]byte{freeze, thaw} {
		if _, err := c.handle(line); err == nil {
			t.Errorf("%s: a failure was answered as done", line)
		}
	}
}

// mounts records the requests for volumes, and returns the error m.fails.
type mounts struct {
	calls []string
	fails error
}

func (m *mounts) Mount(v agentproto.Volume) error {
	m.calls = append(m.calls, fmt.Sprint("mount ", v))
	return m.fails
}

func (m *mounts) Unmount(v agentproto.Volume) error {
	m.calls = append(m.calls, fmt.Sprint("unmount ", v))
	return m.fails
}

func TestVolumesOverControl(t *testing.T) {
	mount, unmount := []byte(`{"op":"mount","volume":{"slot":1,"path":"/data","read_only":true}}`),
		[]byte(`{"op":"unmount","volume":{"slot":1,"path":"/data"}}`)
	m := &mounts{}
	c := &control{volumes: m}
	for _, line := range [][]byte{mount, unmount} {
		if _, err := (&control{}).handle(line); err == nil {
			t.Errorf("%s: an agent that is no init has done it", line)
		}
		if _, err := c.handle(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if want := []string{"mount {1 /data true}", "unmount {1 /data false}"}; !slices.Equal(m.calls, want) {
		t.Errorf("%v, want %v", m.calls, want)
	}
	m.fails = errors.New("odd")
	for _, line := range []string{string(mount), string(unmount), `{"op":"mount"}`, `{"op":"unmount","volume":null}`} {
		if _, err := c.handle([]byte(line)); err == nil {
			t.Errorf("%s: a failure was answered as done", line)
		}
	}
	if len(m.calls) != 4 {
		t.Errorf("requests without a volume had an effect: %v", m.calls)
	}
}

// An agent that is not PID 1 cannot close connections, and returns an error.
func TestResetOverControl(t *testing.T) {
	line := []byte(`{"op":"reset"}`)
	if _, err := (&control{}).handle(line); err == nil {
		t.Error("an agent that is no init has ended connections")
	}
	done := 0
	c := &control{reset: func() error { done++; return nil }}
	if _, err := c.handle(line); err != nil || done != 1 {
		t.Errorf("%d resets, %v", done, err)
	}
	c.reset = func() error { return errors.New("odd") }
	if _, err := c.handle(line); err == nil {
		t.Error("a reset that failed was answered as done")
	}
}
