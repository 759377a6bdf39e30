package envd

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/envdproto/process"
	"github.com/forkd/forkd/internal/proto/envdproto/process/processconnect"
)

func serve(t *testing.T) string {
	t.Helper()
	s := New(Config{
		Reaper: reap.New(), Env: userenv.New(), Log: kmsg.NewPlain(io.Discard),
		OnEnv: func(map[string]string) error { return nil },
	})
	h := httptest.NewServer(s.Handler())
	t.Cleanup(h.Close)
	return h.URL
}

func procClient(url string) processconnect.ProcessClient {
	return processconnect.NewProcessClient(http.DefaultClient, url, connect.WithProtoJSON())
}

func shell(script string) *process.StartRequest {
	return &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}}
}

func startProc(t *testing.T, c processconnect.ProcessClient,
	req *process.StartRequest) (*connect.ServerStreamForClient[process.StartResponse], *process.ProcessSelector) {
	t.Helper()
	stream, err := c.Start(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || stream.Msg().GetEvent().GetStart() == nil {
		t.Fatalf("the first event is %v, %v", stream.Msg(), stream.Err())
	}
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	return stream, &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
}

// finish reads a stream to its end and returns the output and the end event.
func finish(t *testing.T, stream *connect.ServerStreamForClient[process.StartResponse]) (out string,
	end *process.ProcessEvent_EndEvent) {
	t.Helper()
	for stream.Receive() {
		if end != nil {
			t.Fatalf("an event after the end: %v", stream.Msg())
		}
		ev := stream.Msg().GetEvent()
		out += string(ev.GetData().GetStdout()) + string(ev.GetData().GetStderr()) + string(ev.GetData().GetPty())
		end = ev.GetEnd()
	}
	if stream.Err() != nil || end == nil {
		t.Fatalf("the stream ended with %v, end event %v", stream.Err(), end)
	}
	return out, end
}

// TestWireFormat checks the bytes that the SDKs parse.
func TestWireFormat(t *testing.T) {
	base := serve(t)
	body := `{"process":{"cmd":"/bin/sh","args":["-c","printf hi; exit 3"]},"stdin":false}`
	frame := append([]byte{0, 0, 0, 0, byte(len(body))}, body...)
	req, _ := http.NewRequest(http.MethodPost, base+"/process.Process/Start", bytes.NewReader(frame))
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/connect+json" {
		t.Fatalf("%s %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	var got []string
	for len(raw) >= 5 {
		n := int(raw[1])<<24 | int(raw[2])<<16 | int(raw[3])<<8 | int(raw[4])
		var compact bytes.Buffer
		if err := json.Compact(&compact, raw[5:5+n]); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %s", raw[0], compact.String()))
		raw = raw[5+n:]
	}
	if len(got) != 4 || !strings.HasPrefix(got[0], `0 {"event":{"start":{"pid":`) ||
		got[1] != `0 {"event":{"data":{"stdout":"aGk="}}}` ||
		got[2] != `0 {"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}}` ||
		got[3] != `2 {}` {
		t.Fatalf("frames:\n%s", strings.Join(got, "\n"))
	}
}

func TestErrorCodesOfStart(t *testing.T) {
	c := procClient(serve(t))
	dir := "/no/such/dir"
	withCwd := shell("true")
	withCwd.Process.Cwd = &dir
	for name, tc := range map[string]struct {
		req  *process.StartRequest
		code connect.Code
	}{
		"missing command": {&process.StartRequest{Process: &process.ProcessConfig{Cmd: "no-such"}}, connect.CodeNotFound},
		"not executable": {&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/etc/passwd"}},
			connect.CodePermissionDenied},
		"no command":  {&process.StartRequest{}, connect.CodeInvalidArgument},
		"missing cwd": {withCwd, connect.CodeInvalidArgument},
	} {
		stream, err := c.Start(t.Context(), connect.NewRequest(tc.req))
		if err == nil {
			stream.Receive()
			err = stream.Err()
		}
		if connect.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want %v", name, err, tc.code)
		}
	}
}

// A client whose deadline has passed receives a timeout error, and not the signal that killed the
// process. In this test only the server knows the deadline, so the client itself cannot have made
// the error.
func TestDeadlineIsNamed(t *testing.T) {
	c := procClient(serve(t))
	for range 30 {
		req := connect.NewRequest(shell("exec sleep 1000"))
		req.Header().Set("Connect-Timeout-Ms", "30")
		stream, err := c.Start(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for stream.Receive() {
		}
		if connect.CodeOf(stream.Err()) != connect.CodeDeadlineExceeded {
			t.Fatalf("err = %v", stream.Err())
		}
	}
}

func TestDeadlineKillsTheWholeGroup(t *testing.T) {
	c := procClient(serve(t))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	stream, err := c.Start(ctx, connect.NewRequest(shell("sleep 1000 & echo $! > "+pidFile+"; wait")))
	if err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
	}
	if connect.CodeOf(stream.Err()) != connect.CodeDeadlineExceeded {
		t.Fatalf("err = %v", stream.Err())
	}
	raw, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	stat := "/proc/" + strings.TrimSpace(string(raw)) + "/stat"
	for {
		// The process has ended. It may still be a zombie until init collects it.
		if s, err := os.ReadFile(stat); err != nil || bytes.Contains(s, []byte(") Z ")) {
			break
		}
	}
	for {
		procs, err := c.List(t.Context(), connect.NewRequest(&process.ListRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		if len(procs.Msg.Processes) == 0 {
			return
		}
	}
}

func TestStdinSignalsListAndConnect(t *testing.T) {
	c := procClient(serve(t))
	tag := "worker"
	req := shell("read line; echo got $line; cat; exec sleep 1000")
	req.Tag = &tag
	stream, sel := startProc(t, c, req)
	list, err := c.List(t.Context(), connect.NewRequest(&process.ListRequest{}))
	if err != nil || len(list.Msg.Processes) != 1 || list.Msg.Processes[0].GetTag() != tag ||
		list.Msg.Processes[0].GetConfig().GetCmd() != "/bin/sh" {
		t.Fatalf("list = %v, %v", list, err)
	}
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("hello\n")}}
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel,
		Input: in})); err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || string(stream.Msg().GetEvent().GetData().GetStdout()) != "got hello\n" {
		t.Fatalf("got %v", stream.Msg())
	}
	byTag := &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: tag}}
	second, err := c.Connect(t.Context(), connect.NewRequest(&process.ConnectRequest{Process: byTag}))
	if err != nil || !second.Receive() || second.Msg().GetEvent().GetStart().GetPid() != sel.GetPid() {
		t.Fatalf("connect: %v, %v", second.Msg(), err)
	}
	if _, err := c.CloseStdin(t.Context(), connect.NewRequest(&process.CloseStdinRequest{Process: sel})); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel,
		Input: in})); connect.CodeOf(err) != connect.CodeInternal {
		t.Fatalf("input after close: %v", err)
	}
	kill := &process.SendSignalRequest{Process: sel, Signal: process.Signal_SIGNAL_SIGKILL}
	if _, err := c.SendSignal(t.Context(), connect.NewRequest(kill)); err != nil {
		t.Fatal(err)
	}
	if _, end := finish(t, stream); end.GetExitCode() != -1 || end.GetExited() || end.GetStatus() != "signal: killed" ||
		end.GetError() != "signal: killed" {
		t.Fatalf("end = %v", end)
	}
	if !second.Receive() || second.Msg().GetEvent().GetEnd() == nil {
		t.Fatalf("the second stream has no end: %v", second.Msg())
	}
	late, err := c.Connect(t.Context(), connect.NewRequest(&process.ConnectRequest{Process: sel}))
	if err != nil || !late.Receive() || !late.Receive() || late.Msg().GetEvent().GetEnd() == nil {
		t.Fatalf("connect after the end: %v, %v", late.Msg(), err)
	}
	if _, err := c.SendSignal(t.Context(), connect.NewRequest(kill)); connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatalf("signal after the end: %v", err)
	}
}

func TestClientLeavingDoesNotKill(t *testing.T) {
	c := procClient(serve(t))
	ctx, cancel := context.WithCancel(t.Context())
	done := filepath.Join(t.TempDir(), "done")
	stream, err := c.Start(ctx, connect.NewRequest(shell("read x; echo $x > "+done)))
	if err != nil || !stream.Receive() {
		t.Fatal(err)
	}
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	sel := &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
	cancel()
	stream.Close()
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("on\n")}}
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel,
		Input: in})); err != nil {
		t.Fatal(err)
	}
	for {
		if raw, err := os.ReadFile(done); err == nil && string(raw) == "on\n" {
			return
		}
	}
}

func TestOutputLeftInThePipeIsNotLost(t *testing.T) {
	c := procClient(serve(t))
	stream, sel := startProc(t, c, shell("sleep 1000 & head -c 60000 /dev/zero; kill -9 $$"))
	defer syscall.Kill(-int(sel.GetPid()), syscall.SIGKILL) // also kills the sleep, which would outlive the test
	// The sleep keeps the pipe open, but the end event must not wait for it.
	out, end := finish(t, stream)
	if len(out) != 60000 || end.GetExitCode() != -1 {
		t.Fatalf("%d bytes, end %v", len(out), end)
	}
}

func TestPTY(t *testing.T) {
	c := procClient(serve(t))
	req := shell("stty size; read line; echo got $line; stty size")
	req.Pty = &process.PTY{Size: &process.PTY_Size{Cols: 100, Rows: 40}}
	stream, sel := startProc(t, c, req)
	if !stream.Receive() || string(stream.Msg().GetEvent().GetData().GetPty()) != "40 100\r\n" {
		t.Fatalf("got %v", stream.Msg())
	}
	size := &process.PTY{Size: &process.PTY_Size{Cols: 80, Rows: 25}}
	if _, err := c.Update(t.Context(), connect.NewRequest(&process.UpdateRequest{Process: sel, Pty: size})); err != nil {
		t.Fatal(err)
	}
	wrong := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("x")}}
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel,
		Input: wrong})); connect.CodeOf(err) != connect.CodeInternal {
		t.Fatalf("stdin to a terminal: %v", err)
	}
	if _, err := c.CloseStdin(t.Context(),
		connect.NewRequest(&process.CloseStdinRequest{Process: sel})); connect.CodeOf(err) != connect.CodeUnknown {
		t.Fatalf("close stdin of a terminal: %v", err)
	}
	in := &process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: []byte("hey\n")}}
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel,
		Input: in})); err != nil {
		t.Fatal(err)
	}
	if out, end := finish(t, stream); !strings.HasSuffix(out, "got hey\r\n25 80\r\n") || end.GetExitCode() != 0 {
		t.Fatalf("out %q, end %v", out, end)
	}
}

func TestStreamInput(t *testing.T) {
	c := procClient(serve(t))
	p, who := startProc(t, c, shell("cat"))
	send := func(events ...any) error {
		in := c.StreamInput(t.Context())
		for _, ev := range events {
			msg := &process.StreamInputRequest{}
			switch ev := ev.(type) {
			case *process.ProcessSelector:
				msg.Event = &process.StreamInputRequest_Start{Start: &process.StreamInputRequest_StartEvent{Process: ev}}
			case string:
				input := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte(ev)}}
				msg.Event = &process.StreamInputRequest_Data{Data: &process.StreamInputRequest_DataEvent{Input: input}}
			case nil:
				msg.Event = &process.StreamInputRequest_Keepalive{Keepalive: &process.StreamInputRequest_KeepAlive{}}
			}
			if in.Send(msg) != nil {
				break // CloseAndReceive returns the error; Send does not
			}
		}
		_, err := in.CloseAndReceive()
		return err
	}
	if err := send(who, "one ", nil, "two"); err != nil {
		t.Fatal(err)
	}
	for code, events := range map[connect.Code][]any{
		connect.CodeInvalidArgument: {"no start"},
		connect.CodeNotFound:        {&process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: "none"}}},
	} {
		if err := send(events...); connect.CodeOf(err) != code {
			t.Errorf("%v: %v, want %v", events, err, code)
		}
	}
	if _, err := c.CloseStdin(t.Context(), connect.NewRequest(&process.CloseStdinRequest{Process: who})); err != nil {
		t.Fatal(err)
	}
	if out, _ := finish(t, p); out != "one two" {
		t.Errorf("output %q", out)
	}
}

// envd and the code interpreter have different default users. A request that names a user is
// executed as that user.
func TestDefaultUserOfARequest(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: only root starts processes as somebody else")
	}
	url := serve(t)
	for name, want := range map[string]string{"": "nobody\n", "root": "root\n"} {
		req := connect.NewRequest(shell("id -un"))
		req.Header().Set(agentproto.DefaultUserHeader, "nobody")
		if name != "" {
			req.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(name+":")))
		}
		stream, err := procClient(url).Start(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if out, _ := finish(t, stream); out != want {
			t.Errorf("a request for %q runs as %q, want %q", name, out, want)
		}
	}
}
