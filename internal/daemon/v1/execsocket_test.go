package v1_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
)

// running is a command on a WebSocket.
type running struct {
	*client.Process
	out *os.File
	end chan result
}

type result struct {
	end client.ExecEnd
	err error
}

// run starts a command and reads its stdout. It discards stderr.
func run(t *testing.T, start func() (*client.Process, error)) running {
	t.Helper()
	p, err := start()
	if err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe() // the pipe's buffer receives output even if nothing reads it
	if err != nil {
		t.Fatal(err)
	}
	r := running{p, out, make(chan result, 1)}
	go func() {
		end, err := p.Wait(w, io.Discard)
		w.Close()
		r.end <- result{end, err}
	}()
	t.Cleanup(func() { out.Close() })
	return r
}

func shell(cl *client.Client, ctx context.Context, id, script string,
	change func(*client.ExecRequest)) func() (*client.Process, error) {
	req := client.ExecRequest{Args: []string{"sh", "-c", script}, OpenStdin: true}
	if change != nil {
		change(&req)
	}
	return func() (*client.Process, error) { return cl.StartExec(ctx, id, req) }
}

// await reads the output until the output contains the given text.
func (r running) await(t *testing.T, text string) {
	t.Helper()
	var got []byte
	for buf := make([]byte, 1); !bytes.HasSuffix(got, []byte(text)); {
		if _, err := r.out.Read(buf); err != nil {
			t.Fatalf("after %q: %v, want %q", got, err, text)
		}
		got = append(got, buf[0])
	}
}

func (r running) ended(t *testing.T) client.ExecEnd {
	t.Helper()
	go io.Copy(io.Discard, r.out)
	res := <-r.end
	if res.err != nil {
		t.Fatal(res.err)
	}
	return res.end
}

// awaitEnd waits until a process of the host has exited.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for syscall.Kill(pid, 0) == nil {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestTerminalOfACommand(t *testing.T) {
	cl, _, id := forked(t)
	r := run(t, shell(cl, t.Context(), id,
		"stty size; echo $TERM; until [ \"$(stty size)\" = '33 99' ]; do sleep 0.1; done; stty size; cat >/dev/null",
		func(req *client.ExecRequest) {
			req.TTY = &client.TTYSize{Cols: 101, Rows: 43}
		}))
	r.await(t, "43 101\r\nxterm-256color\r\n")
	if err := r.Resize(client.TTYSize{Cols: 99, Rows: 33}); err != nil {
		t.Fatal(err)
	}
	r.await(t, "33 99\r\n")
	if err := r.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if end := r.ended(t); end.ExitCode != 0 {
		t.Errorf("%+v", end)
	}
}

func TestInputOfACommand(t *testing.T) {
	cl, _, id := forked(t)
	input := bytes.Repeat([]byte("0123456789abcde\xff"), 1<<16)
	r := run(t, shell(cl, t.Context(), id, "sha256sum", nil))
	if n, err := r.Write(input); err != nil || n != len(input) {
		t.Fatal(n, err)
	}
	if err := r.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	r.await(t, fmt.Sprintf("%x  -\n", sha256.Sum256(input)))
	if end := r.ended(t); end.ExitCode != 0 {
		t.Errorf("%+v", end)
	}

	r = run(t, shell(cl, t.Context(), id, "exec <&-; echo closed; sleep 1000", nil))
	r.await(t, "closed\n")
	if _, err := r.Write(input); !errors.Is(err, client.ErrStdinClosed) {
		t.Errorf("input that nobody takes: %v", err)
	}
	r.Signal("kill")
	if end := r.ended(t); end.ExitCode != 137 || end.Signal != "SIGKILL" {
		t.Errorf("%+v", end)
	}
}

// Signals overtake input that the process does not read. They reach the whole process group.
func TestSignalsOfACommand(t *testing.T) {
	cl, _, id := forked(t)
	r := run(t, shell(cl, t.Context(), id, "trap 'exit 7' INT; sleep 1000 & echo $!; wait", nil))
	var child int
	if _, err := fmt.Fscanln(r.out, &child); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := r.Write(make([]byte, 1<<20)) // more bytes than a pipe holds
		failed <- err
	}()
	if err := r.Signal("SIGINT"); err != nil {
		t.Fatal(err)
	}
	if end := r.ended(t); end.ExitCode != 7 {
		t.Errorf("%+v", end)
	}
	if err := <-failed; err == nil {
		t.Error("input that nobody took was taken")
	}
	// A background command of sh ignores SIGINT, so it is killed.
	syscall.Kill(child, syscall.SIGKILL)

	r = run(t, shell(cl, t.Context(), id, "sleep 1000 & echo $!; wait", nil))
	if _, err := fmt.Fscanln(r.out, &child); err != nil {
		t.Fatal(err)
	}
	if err := cl.SignalProcess(t.Context(), id, r.PID, "TERM"); err != nil {
		t.Fatal(err)
	}
	if end := r.ended(t); end.ExitCode != 143 || end.Signal != "SIGTERM" {
		t.Errorf("%+v", end)
	}
	awaitEnd(t, child)
	if err := cl.SignalProcess(t.Context(), id, r.PID, "TERM"); !client.IsNotFound(err) {
		t.Errorf("a signal for a process that has ended: %v", err)
	}
}

// A command is killed when its client disconnects. It is also killed if it reads no input and the
// daemon therefore cannot read from the connection any more.
func TestACommandEndsWithItsClient(t *testing.T) {
	cl, _, id := forked(t)
	for _, input := range []int{0, 1 << 20} {
		ctx, cancel := context.WithCancel(t.Context())
		r := run(t, shell(cl, ctx, id, "sleep 1000 & echo $!; wait", nil))
		var child int
		if _, err := fmt.Fscanln(r.out, &child); err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() {
			_, err := r.Write(make([]byte, input))
			sent <- err
		}()
		cancel()
		awaitEnd(t, child)
		if res := <-r.end; !errors.Is(res.err, context.Canceled) {
			t.Errorf("%+v, %v", res.end, res.err)
		}
		<-sent
	}
	for { // wait until the daemon's request has ended too
		list, err := cl.Processes(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A client that receives nothing is disconnected, and its command is killed.
func TestASocketThatNobodyReadsEnds(t *testing.T) {
	// Idle is long enough for the client to receive the message that the command has started.
	r := start(t, apirig.Options{Limits: face.Limits{PerSandbox: 1, Idle: time.Second}})
	id := fork(t, r, 1)[0].ID
	p, err := r.StartExec(t.Context(), id, client.ExecRequest{Args: []string{"yes"}})
	if err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, int(p.PID))
}

func TestWrongMessages(t *testing.T) {
	cl, url, id := forked(t)
	for message, want := range map[string]string{
		`{"start":{"args":[]}}`:                         "args",
		`{"start":{"args":["true"],"user":"nobody-x"}}`: "nobody-x",
		`{"start":{"args":["true"],"stdin":"eA=="}}`:    "stdin",
		`{"start":{"args":["true"],"colour":1}}`:        "colour",
		`{"resize":{}}`:                                 "start",
		`{`:                                             "first message",
		`{"start":{"args":["sleep","1000"]}}{}`:         "follows",
	} {
		if got := ask1(t, url, id, message); !strings.Contains(got, want) || !strings.Contains(got, `"status":400`) {
			t.Errorf("%s: %s, want %q", message, got, want)
		}
	}
	if got := ask1(t, url, id, `{"start":{"args":["sleep","1000"]}}`, `{"signal":"FOO"}`); !strings.Contains(got,
		"SIGTERM") {
		t.Errorf("a wrong signal: %s", got)
	}
	var none *client.NotStartedError
	if _, err := cl.StartExec(t.Context(), id, client.ExecRequest{Args: []string{"no-such"}}); !errors.As(err, &none) ||
		none.ExitCode != 127 {
		t.Errorf("no such command: %v", err)
	}
	if _, err := cl.StartExec(t.Context(), "sb-none",
		client.ExecRequest{Args: []string{"true"}}); !client.IsNotFound(err) {
		t.Errorf("no such sandbox: %v", err)
	}
	resp, err := http.DefaultClient.Do(requestOf(t, url+"/v1/sandboxes/"+id+"/exec"))
	if err != nil || resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("without an upgrade: %+v, %v", resp, err)
	}
}

func requestOf(t *testing.T, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", bearer)
	return req
}

// ask1 sends messages and returns the last text message that it receives.
func ask1(t *testing.T, url, id string, messages ...string) string {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), url+"/v1/sandboxes/"+id+"/exec",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {bearer}}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	for _, m := range messages {
		if err := ws.Write(t.Context(), websocket.MessageText, []byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	last := ""
	for {
		kind, p, err := ws.Read(t.Context())
		if err != nil {
			if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
				t.Errorf("%q: %v", messages, err)
			}
			return last
		}
		if kind == websocket.MessageText {
			last = string(p)
		}
	}
}

// A protocol error is reported as an error of the client, not as a failure of the daemon.
func TestBrokenWebSocket(t *testing.T) {
	_, url, id := forked(t)
	for name, frame := range map[string]string{
		"unmasked":        "\x81\x02{}",
		"negative length": "\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",
		"reserved bits":   "\xf1\x80\x00\x00\x00\x00",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\nConnection: Upgrade\r\n"+
			"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n%s", id,
			bearer, frame)
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%s: %+v, %v", name, resp, err)
		}
		rest, err := io.ReadAll(in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// "\x03\xea" is 1002.
		if strings.Contains(string(rest), `"status":500`) || !strings.Contains(string(rest), "\x03\xea") {
			t.Errorf("%s: %q, want an end with 1002", name, rest)
		}
	}
}

// If a process reads its input and exits, the client first learns that the input was read, and then
// that the process exited.
func TestInputOfAProcessThatEnds(t *testing.T) {
	r, _, id := forked(t)
	for i := range 60 {
		req := client.ExecRequest{Args: client.Shell("read x"), OpenStdin: true}
		if i%2 == 0 {
			req.TTY = &client.TTYSize{}
		}
		p, err := r.StartExec(t.Context(), id, req)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			_, err := p.Wait(io.Discard, io.Discard)
			ended <- err
		}()
		if _, err := p.Write([]byte("hello\n")); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := p.Write([]byte("more\n")); !errors.Is(err, client.ErrStdinClosed) {
			t.Errorf("after the end: %v", err)
		}
	}
}
