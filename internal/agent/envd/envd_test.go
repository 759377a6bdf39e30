package envd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/forkd/forkd/internal/agent/kmsg"
	"github.com/forkd/forkd/internal/agent/reap"
	"github.com/forkd/forkd/internal/agent/userenv"
	"github.com/forkd/forkd/internal/envdproto/filesystem"
	"github.com/forkd/forkd/internal/envdproto/filesystem/filesystemconnect"
	"github.com/forkd/forkd/internal/envdproto/process"
	"github.com/forkd/forkd/internal/envdproto/process/processconnect"
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

func fsClient(url string) filesystemconnect.FilesystemClient {
	return filesystemconnect.NewFilesystemClient(http.DefaultClient, url, connect.WithProtoJSON())
}

func shell(script string) *process.StartRequest {
	return &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}}
}

func startProc(t *testing.T, c processconnect.ProcessClient, req *process.StartRequest) (*connect.ServerStreamForClient[process.StartResponse], *process.ProcessSelector) {
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

// finish collects a stream to its end.
func finish(t *testing.T, stream *connect.ServerStreamForClient[process.StartResponse]) (out string, end *process.ProcessEvent_EndEvent) {
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

// TestWireFormat checks the bytes as the SDKs parse them.
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
		"not executable":  {&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/etc/passwd"}}, connect.CodePermissionDenied},
		"no command":      {&process.StartRequest{}, connect.CodeInvalidArgument},
		"missing cwd":     {withCwd, connect.CodeInvalidArgument},
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
		// Gone, or a zombie that waits for init.
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
	if err != nil || len(list.Msg.Processes) != 1 || list.Msg.Processes[0].GetTag() != tag || list.Msg.Processes[0].GetConfig().GetCmd() != "/bin/sh" {
		t.Fatalf("list = %v, %v", list, err)
	}
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("hello\n")}}
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel, Input: in})); err != nil {
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
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel, Input: in})); connect.CodeOf(err) != connect.CodeInternal {
		t.Fatalf("input after close: %v", err)
	}
	kill := &process.SendSignalRequest{Process: sel, Signal: process.Signal_SIGNAL_SIGKILL}
	if _, err := c.SendSignal(t.Context(), connect.NewRequest(kill)); err != nil {
		t.Fatal(err)
	}
	if _, end := finish(t, stream); end.GetExitCode() != -1 || end.GetExited() || end.GetStatus() != "signal: killed" || end.GetError() != "signal: killed" {
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
	sel := &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: stream.Msg().GetEvent().GetStart().GetPid()}}
	cancel()
	stream.Close()
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("on\n")}}
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel, Input: in})); err != nil {
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
	stream, _ := startProc(t, c, shell("sleep 1000 & head -c 60000 /dev/zero; kill -9 $$"))
	out, end := finish(t, stream) // the sleep keeps the pipe open; the end must not wait for it for long
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
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel, Input: wrong})); connect.CodeOf(err) != connect.CodeInternal {
		t.Fatalf("stdin to a terminal: %v", err)
	}
	if _, err := c.CloseStdin(t.Context(), connect.NewRequest(&process.CloseStdinRequest{Process: sel})); connect.CodeOf(err) != connect.CodeUnknown {
		t.Fatalf("close stdin of a terminal: %v", err)
	}
	in := &process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: []byte("hey\n")}}
	if _, err := c.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel, Input: in})); err != nil {
		t.Fatal(err)
	}
	if out, end := finish(t, stream); !strings.HasSuffix(out, "got hey\r\n25 80\r\n") || end.GetExitCode() != 0 {
		t.Fatalf("out %q, end %v", out, end)
	}
}

func TestFilesystemCalls(t *testing.T) {
	c := fsClient(serve(t))
	dir := t.TempDir()
	ctx := t.Context()
	if _, err := c.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: dir + "/a/b"})); err != nil {
		t.Fatal(err)
	}
	if _, err := c.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: dir + "/a/b"})); connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("make an existing directory: %v", err)
	}
	os.WriteFile(dir+"/a/f", []byte("12345"), 0o640)
	os.Symlink(dir+"/a", dir+"/link")
	if _, err := c.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: dir + "/a/f"})); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("make a directory over a file: %v", err)
	}
	for depth, want := range map[uint32]string{0: "a link", 1: "a link", 2: "a b f link"} {
		got, err := c.ListDir(ctx, connect.NewRequest(&filesystem.ListDirRequest{Path: dir, Depth: depth}))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range got.Msg.Entries {
			names = append(names, e.Name)
		}
		if strings.Join(names, " ") != want {
			t.Errorf("depth %d: %v, want %s", depth, names, want)
		}
	}
	st, err := c.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: dir + "/a/f"}))
	if e := st.Msg.GetEntry(); err != nil || e.Size != 5 || e.Mode != 0o640 || e.Permissions != "-rw-r-----" || e.Type != filesystem.FileType_FILE_TYPE_FILE || e.Owner == "" {
		t.Errorf("stat: %v, %v", e, err)
	}
	st, err = c.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: dir + "/link"}))
	if e := st.Msg.GetEntry(); err != nil || e.Type != filesystem.FileType_FILE_TYPE_DIRECTORY || e.GetSymlinkTarget() != dir+"/a" || e.Permissions[0] != 'L' {
		t.Errorf("stat of a link: %v, %v", e, err)
	}
	if _, err := c.Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: dir + "/a/f", Destination: dir + "/new/g"})); err != nil {
		t.Error(err)
	}
	if _, err := c.Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: dir + "/a/f", Destination: dir + "/h"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("move a missing file: %v", err)
	}
	for range 2 {
		if _, err := c.Remove(ctx, connect.NewRequest(&filesystem.RemoveRequest{Path: dir + "/a"})); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if _, err := c.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: dir + "/a"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("stat of a removed directory: %v", err)
	}
}

func TestWatch(t *testing.T) {
	c := fsClient(serve(t))
	dir := t.TempDir()
	stream, err := c.WatchDir(t.Context(), connect.NewRequest(&filesystem.WatchDirRequest{Path: dir, Recursive: true, IncludeEntry: true}))
	if err != nil || !stream.Receive() || stream.Msg().GetStart() == nil {
		t.Fatalf("start: %v, %v", stream.Msg(), err)
	}
	made, err := c.CreateWatcher(t.Context(), connect.NewRequest(&filesystem.CreateWatcherRequest{Path: dir}))
	if err != nil {
		t.Fatal(err)
	}
	id := made.Msg.GetWatcherId()
	os.Mkdir(dir+"/sub", 0o755)
	if !stream.Receive() || stream.Msg().GetFilesystem().GetName() != "sub" || stream.Msg().GetFilesystem().GetEntry().GetPath() != dir+"/sub" {
		t.Fatalf("got %v, %v", stream.Msg(), stream.Err())
	}
	os.Remove(dir + "/sub")
	var types []filesystem.EventType
	for len(types) < 2 {
		got, err := c.GetWatcherEvents(t.Context(), connect.NewRequest(&filesystem.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range got.Msg.Events {
			types = append(types, ev.Type)
		}
	}
	if types[0] != filesystem.EventType_EVENT_TYPE_CREATE || types[1] != filesystem.EventType_EVENT_TYPE_REMOVE {
		t.Fatalf("events = %v", types)
	}
	if _, err := c.RemoveWatcher(t.Context(), connect.NewRequest(&filesystem.RemoveWatcherRequest{WatcherId: id})); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetWatcherEvents(t.Context(), connect.NewRequest(&filesystem.GetWatcherEventsRequest{WatcherId: id})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatalf("events of a removed watcher: %v", err)
	}
}

func TestMultipartUpload(t *testing.T) {
	base := serve(t)
	dir := t.TempDir()
	var body bytes.Buffer
	m := multipart.NewWriter(&body)
	for _, name := range []string{"/x/one", "/y/two"} {
		part, _ := m.CreatePart(textproto.MIMEHeader{"Content-Disposition": {fmt.Sprintf(`form-data; name="file"; filename="%s%s"`, dir, name)}})
		io.WriteString(part, name)
	}
	m.Close()
	resp, err := http.Post(base+"/files", m.FormDataContentType(), &body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, _ := io.ReadAll(resp.Body)
	want := fmt.Sprintf(`[{"path":"%[1]s/x/one","name":"one","type":"file"},{"path":"%[1]s/y/two","name":"two","type":"file"}]`, dir)
	if strings.TrimSpace(string(got)) != want {
		t.Fatalf("reply %s, want %s", got, want)
	}
	if raw, err := os.ReadFile(dir + "/y/two"); err != nil || string(raw) != "/y/two" {
		t.Fatalf("content %q, %v", raw, err)
	}
}

func TestTokenAndSignedURLs(t *testing.T) {
	base := serve(t)
	init := `{"accessToken":"secret","envVars":{"K":"v"},"defaultUser":"root"}`
	resp, err := http.Post(base+"/init", "application/json", strings.NewReader(init))
	if err != nil || resp.StatusCode != http.StatusNoContent {
		t.Fatal(resp.Status, err)
	}
	path := filepath.Join(t.TempDir(), "f")
	os.WriteFile(path, []byte("text"), 0o600)
	sign := func(op string, expires string) string {
		text := path + ":" + op + "::secret"
		if expires != "" {
			text += ":" + expires
		}
		sum := sha256.Sum256([]byte(text))
		return "&signature=" + url.QueryEscape("v1_"+base64.RawStdEncoding.EncodeToString(sum[:])) + "&signature_expiration=" + expires
	}
	file := "/files?path=" + path
	for target, want := range map[string]int{
		"/health":                          204,
		"/envs":                            401,
		file:                               401,
		file + sign("read", ""):            200,
		file + sign("write", ""):           401,
		file + sign("read", "1000"):        401,
		file + sign("read", "99999999999"): 200,
	} {
		resp, err := http.Get(base + target)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %v, %v; want %d", target, resp.StatusCode, err, want)
		}
		resp.Body.Close()
	}
}
