package mcphttp_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/mcphttp"
	"github.com/forkd/forkd/internal/mcp"
)

// mostAnswer is the maximum size, in bytes, of the answer to one message. mostHeld is the maximum
// number of bytes of memory that the answer may take while the client does not read.
const (
	mostAnswer = 6 << 20
	mostHeld   = 8 << 20
)

// loud returns a text that JSON makes six times as long.
func loud(n int) string { return strings.Repeat("<", n) }

func loudSandbox() apiv1.Sandbox {
	s := apiv1.Sandbox{ID: "sb-1", State: "running", Labels: map[string]string{}, Unique: &apiv1.Unique{}}
	for i := range 64 {
		s.Labels[fmt.Sprintf("l%d", i)] = loud(256)
		s.Unique.Repeats = append(s.Unique.Repeats, apiv1.Generator{PID: 1, Program: loud(256), Library: loud(256)})
		s.Unique.Reseeded = append(s.Unique.Reseeded, s.Unique.Repeats[i])
	}
	return s
}

// loudAPI answers every request with the largest answer that the API and a hostile guest can give.
func loudAPI(w http.ResponseWriter, r *http.Request) {
	box := loudSandbox()
	lines := func(events ...any) {
		w.Header().Set("Content-Type", apiv1.NDJSON)
		for _, e := range events {
			enc := json.NewEncoder(w)
			enc.SetEscapeHTML(false)
			_ = enc.Encode(e)
		}
	}
	plain := func(v any) { _ = face.WriteArray(w, []any{v}, func(v any) any { return v }) }
	object := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(v)
	}
	list := func(v any) { // v repeated 300 times
		q := r.URL.Query()
		limit, err := strconv.Atoi(q.Get("limit"))
		if err != nil {
			limit = 300
		}
		if begun := len(q.Get("cursor")) + limit; begun < 300 {
			w.Header().Set("Link", `<`+r.URL.Path+`?cursor=`+strings.Repeat("a", begun)+`>; rel="next"`)
		}
		_ = face.WriteArray(w, make([]int, limit), func(int) any { return v })
	}
	part := loud(1 << 20)
	switch name := path.Base(r.URL.Path); {
	case r.URL.Path == "/v1/sandboxes":
		list(box)
	case r.URL.Path == "/v1/snapshots" && r.Method == http.MethodGet:
		list(apiv1.Snapshot{Tag: "a", Warning: loud(4096), Labels: box.Labels})
	case r.URL.Path == "/v1/snapshots":
		object(apiv1.Baked{WarmupOutput: part, GuestErrors: []string{part, part}})
	case r.URL.Path == "/v1/forks":
		var req apiv1.ForkRequest
		_ = json.NewDecoder(r.Body).Decode(&req)
		f := apiv1.Forked{}
		for range req.N {
			f.Sandboxes = append(f.Sandboxes, box)
		}
		object(f)
	case name == "list":
		plain(apiv1.File{Name: "a", Path: loud(8 << 20), Type: part, Owner: part, Permissions: part, LinkTarget: part})
	case name == "stat":
		object(apiv1.File{Name: "a", Path: loud(1000), Type: "file", Size: 4 << 20})
	case name == "files" && r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.WriteString(w, loud(512<<10))
	case name == "files", r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	case name == "console":
		_, _ = io.WriteString(w, part)
	case name == "exec" && strings.Contains(r.Header.Get("Accept"), apiv1.NDJSON):
		text := apiv1.ExecEvent{Stdout: loud(64 << 10), Stderr: loud(64 << 10)}
		if p, err := io.ReadAll(r.Body); err == nil && strings.Contains(string(p), "exit_code") {
			text = apiv1.ExecEvent{Stdout: "ended 0 9999999 9999999\n", Stderr: "x"}
			lines(text)
		} else {
			lines(apiv1.ExecEvent{Started: &apiv1.ExecStarted{PID: 1}}, text, text)
		}
		lines(apiv1.ExecEvent{End: &apiv1.ExecEnd{Outcome: "exited", Error: text.Stdout}})
	case name == "code":
		png := json.RawMessage(`"` + strings.Repeat("QUFB", 300<<10) + `"`)
		value := func(main bool) *apiv1.CodeResult {
			data := map[string]json.RawMessage{"text/plain": json.RawMessage(`"` + loud(40<<10) + `"`)}
			for i := range 40 {
				data[loud(1000)+strconv.Itoa(i)] = json.RawMessage(`1`)
			}
			return &apiv1.CodeResult{Main: main, Data: data}
		}
		image := apiv1.CodeEvent{Result: &apiv1.CodeResult{Data: map[string]json.RawMessage{"image/png": png}}}
		text := apiv1.CodeEvent{Stdout: loud(100 << 10), Stderr: loud(100 << 10)}
		lines(text, image, image, apiv1.CodeEvent{Stderr: text.Stderr})
		for i := range 12 {
			lines(apiv1.CodeEvent{Result: value(i == 11)})
		}
		lines(apiv1.CodeEvent{Exception: &apiv1.CodeException{Name: part, Value: part, Traceback: part}},
			apiv1.CodeEvent{End: &apiv1.CodeEnd{Outcome: "exception"}})
	case name == "eval":
		object(apiv1.EvalResult{Result: &part, Stdout: part, Stderr: part, Traceback: part, Error: part})
	case name == "network":
		n := apiv1.SandboxNetwork{Mode: "allow"}
		for range 2000 {
			n.Stats.Recent = append(n.Stats.Recent, apiv1.NetworkRefusal{Name: loud(255), Why: loud(100)})
		}
		object(n)
	case name == "effects":
		e := apiv1.Effects{Hold: &apiv1.Hold{Hosts: []string{"example.com"}, Answer: "record"}}
		for range 256 {
			one := apiv1.Effect{Method: "POST", URL: loud(4 << 10), Headers: []string{loud(8 << 10)}, Body: loud(16 << 10)}
			e.List = append(e.List, one)
		}
		object(e)
	case r.URL.Path == "/v1/volumes":
		list(apiv1.Volume{Name: "a", Labels: box.Labels})
	case strings.HasPrefix(r.URL.Path, "/v1/sandboxes/") && strings.Count(r.URL.Path, "/") == 3:
		object(box)
	case strings.HasPrefix(r.URL.Path, "/v1/snapshots/"):
		object(apiv1.SnapshotDetail{Snapshot: apiv1.Snapshot{Tag: "a", Labels: box.Labels}})
	default:
		object(map[string]string{"id": "sb-1", "tag": "a"})
	}
}

// message is a JSON message that calls a tool.
func message(tool string, in map[string]any) string {
	p, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": tool, "arguments": in}})
	if err != nil {
		panic(err)
	}
	return string(p)
}

func reading(uri string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"` + uri + `"}}`
}

// unread is the connection of a client that reads nothing. A write longer than a progress report
// blocks until the test ends.
type unread struct {
	header http.Header
	status int
	n      int
	stalls chan<- struct{} // receives a value for each blocked write
	end    <-chan struct{}
}

func (u *unread) Header() http.Header    { return u.header }
func (u *unread) WriteHeader(status int) { u.status = status }
func (u *unread) Flush()                 {}
func (u *unread) Write(p []byte) (int, error) {
	u.n += len(p)
	if u.end != nil && len(p) > 64<<10 {
		u.stalls <- struct{}{}
		<-u.end
		runtime.KeepAlive(p)
	}
	return len(p), nil
}

func posted(t *testing.T, body string) *http.Request {
	r := httptest.NewRequestWithContext(auth.With(t.Context(), auth.Principal{Who: "token:a", Scope: auth.Admin}),
		http.MethodPost, "/mcp", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	return r
}

// Whatever the API and its guests answer, the answer to a message is bounded. While the client does
// not read, the memory that the answer takes is also bounded.
func TestAnswersAreBounded(t *testing.T) {
	box := func(more ...any) map[string]any {
		in := map[string]any{"sandbox_id": "sb-1"}
		for i := 0; i < len(more); i += 2 {
			in[more[i].(string)] = more[i+1]
		}
		return in
	}
	commands := []string{}
	for range 64 {
		commands = append(commands, loud(4<<10))
	}
	tools := map[string]map[string]any{
		"list_snapshots": {}, "list_sandboxes": {}, "get_sandbox": box(), "kill_sandbox": box(), "ping_sandbox": box(),
		"spawn_sandboxes": {"snapshot_tag": "a", "n": 300}, "branch_sandbox": box(), "rollback": box(),
		"create_snapshot": {"tag": "a", "kernel": "k", "rootfs": "r"}, "fork": box("n", 100), "branch": box("n", 100),
		"wait_for_text": box("path", "/a", "marker", loud(1<<20), "timeout_secs", 0),
		"exec_command":  box("args", []string{"a"}), "eval_code": box("code", "1"), "run_code": box("code", "1"),
		"tree": box(), "set_state": box("state", "paused"), "delete_snapshot": {"tag": "a"},
		"fork_and_run": box("commands", commands, "score", "x", "keep", "all"), "start_command": box("command", "x"),
		"wait_command": box("pid", 1, "timeout_secs", 0), "signal_command": box("pid", 1),
		"read_file": box("path", "/a", "max_bytes", 512<<10), "write_file": box("path", "/a", "content", loud(1<<20)),
		"list_files": box("path", "/"), "port_url": box("port", 80), "network": box("mode", "none"),
		"effects": box(), "volumes": {},
	}
	messages := map[string]string{
		"no such tool": message(loud(1<<20), nil), "no such value": message("set_state", box("state", loud(1<<20))),
		"no such resource": reading("forkd://" + strings.Repeat("x", 1<<20)), "tree of all": message("tree", nil),
	}
	for _, d := range mcp.New("test").Describe() {
		if tools[d.Name] == nil {
			t.Errorf("%s: this test has no arguments for it", d.Name)
			continue
		}
		messages[d.Name] = message(d.Name, tools[d.Name])
	}
	for _, uri := range []string{"snapshots", "sandboxes", "snapshots/a", "sandboxes/sb-1", "sandboxes/sb-1/console",
		"sandboxes/sb-1/files/a"} {
		messages[uri] = reading("forkd://" + uri)
	}
	h := mcphttp.New("test", 0, slog.New(slog.DiscardHandler))(http.HandlerFunc(loudAPI))
	for name, body := range messages {
		t.Run(name, func(t *testing.T) {
			const at = 2
			before := heap()
			stalls, end := make(chan struct{}), make(chan struct{})
			var work sync.WaitGroup
			ended := make(chan struct{}, at)
			answers := make([]*unread, at)
			for i := range at {
				answers[i] = &unread{header: http.Header{}, stalls: stalls, end: end}
				work.Go(func() {
					h.ServeHTTP(answers[i], posted(t, body))
					ended <- struct{}{}
				})
			}
			for range at {
				select {
				case <-stalls:
				case <-ended:
				}
			}
			held := (heap() - before) / at
			close(end)
			work.Wait()
			if n := answers[0].n; n == 0 || n > mostAnswer || held > mostHeld {
				t.Errorf("the answer has %d KiB, and %d KiB are held while it waits", n>>10, held>>10)
			} else {
				t.Logf("the answer has %d KiB, and %d KiB are held while it waits", n>>10, held>>10)
			}
		})
	}
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// If a message calls a tool, the API's answers to the tool count against the message's share of
// memory while the tool decodes them.
func TestDecodedAnswersAreCounted(t *testing.T) {
	f := face.New(face.Config{Limits: face.Limits{Memory: 16 << 20}})
	answer := func(size int) string {
		h := mcphttp.New("test", 0, slog.New(slog.DiscardHandler))(http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) {
				_ = face.WriteArray(w, []string{loud(size)}, func(name string) apiv1.File {
					return apiv1.File{Name: "a", Path: name, Type: "file"}
				})
			}))
		r, done := f.Memory.Sharing(posted(t, message("list_files", map[string]any{"sandbox_id": "sb-1", "path": "/"})))
		defer done()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Body.String()
	}
	if got := answer(1 << 20); strings.Contains(got, `"isError":true`) || !strings.Contains(got, "entries") {
		t.Errorf("a list of 1 MiB: %.300s", got)
	}
	if got := answer(8 << 20); !strings.Contains(got, `"isError":true`) ||
		!strings.Contains(got, face.ErrNoMemory.Error()) {
		t.Errorf("a list of 8 MiB, of which four copies are more than there is: %.300s", got)
	}
}
