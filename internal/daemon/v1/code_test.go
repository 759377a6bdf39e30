package v1_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
)

// The output of code arrives completely and in order.
func TestRunCode(t *testing.T) {
	cl, _, id := forked(t)
	run := func(req client.CodeRequest) client.Execution {
		t.Helper()
		e, err := cl.RunCode(t.Context(), id, req, client.CodeHandlers{})
		if err != nil {
			t.Fatalf("%+v: %v", req, err)
		}
		return e
	}
	e := run(client.CodeRequest{Code: "import sys\nx = 40\nprint('out')\nprint('err', file=sys.stderr)\nx + 2"})
	if e.Text() != "42" || e.Stdout != "out\n" || e.Stderr != "err\n" || e.ExecutionCount != 1 ||
		e.Outcome != "finished" || e.Exception != nil {
		t.Errorf("%+v", e)
	}
	if e := run(client.CodeRequest{Code: "x"}); e.Text() != "40" || e.ExecutionCount != 2 {
		t.Errorf("the next call: %+v", e)
	}
	e = run(client.CodeRequest{Code: "class R:\n  def _repr_html_(self): return '<b>'\n  def _repr_png_(self): return b'\\x89P'\n" +
		"  def _repr_json_(self): return {'a': [1]}\n  def _repr_mimebundle_(self, **_): return {'application/x-own': 'o'}\n" +
		"  def __repr__(self): return 'R'\ndisplay(1)\nR()"})
	if len(e.Results) != 2 || e.Results[0].Main || e.Results[0].Text("text/plain") != "1" || !e.Results[1].Main {
		t.Fatalf("%+v", e)
	}
	r := e.Results[1]
	if r.Text("text/html") != "<b>" || string(r.Bytes("image/png")) != "\x89P" ||
		string(r.Data["application/json"]) != `{"a":[1]}` ||
		r.Text("application/x-own") != "o" || r.Text("text/plain") != "R" {
		t.Errorf("%s", r.Data)
	}
	if e := run(client.CodeRequest{Code: "'it'"}); e.Text() != "it" {
		t.Errorf("a string: %q", e.Text())
	}
	if e := run(client.CodeRequest{Code: "'it'", Repr: true}); e.Text() != "'it'" {
		t.Errorf("a string with its quotes: %q", e.Text())
	}
	if e := run(client.CodeRequest{Code: "import os; os.environ['V']",
		Env: map[string]string{"V": "w"}}); e.Text() != "w" {
		t.Errorf("a variable: %+v", e)
	}
	e = run(client.CodeRequest{Code: "print('before')\n1/0"})
	if e.Exception == nil || e.Exception.Name != "ZeroDivisionError" || !strings.Contains(e.Exception.Traceback, "1/0") ||
		e.Outcome != "exception" || e.Stdout != "before\n" || e.StateLost {
		t.Errorf("an exception: %+v", e)
	}
	if e := run(client.CodeRequest{Code: "import time; time.sleep(60)", TimeoutSecs: 0.2}); e.Outcome != "timeout" ||
		e.StateLost {
		t.Errorf("a timeout: %+v", e)
	}
	e = run(client.CodeRequest{Code: "import os; os._exit(3)"})
	if e.Outcome != "died" || !e.StateLost || e.Exception == nil {
		t.Errorf("an interpreter that died: %+v", e)
	}
	if e := run(client.CodeRequest{Code: "x"}); e.Exception == nil || e.Exception.Name != "NameError" ||
		e.ExecutionCount != 1 {
		t.Errorf("after it: %+v", e)
	}
}

// A handler receives output before the code ends, and can stop the code with an error.
func TestRunCodeStreams(t *testing.T) {
	cl, _, id := forked(t)
	full := fmt.Errorf("seen enough")
	var seen []string
	_, err := cl.RunCode(t.Context(), id,
		client.CodeRequest{Code: "import time\nfor n in range(1000): print(n, flush=True); time.sleep(.05)"},
		client.CodeHandlers{Stdout: func(text string) error {
			if seen = append(seen, strings.Fields(text)...); len(seen) >= 2 {
				return full
			}
			return nil
		}})
	if !errors.Is(err, full) || !reflect.DeepEqual(seen[:2], []string{"0", "1"}) {
		t.Errorf("%v, %v", seen, err)
	}
	if e, err := cl.RunCode(t.Context(), id, client.CodeRequest{Code: "'free'"}, client.CodeHandlers{}); err != nil ||
		e.Text() != "free" {
		t.Errorf("the next call waits for code whose client has left: %+v, %v", e, err)
	}
}

func TestContexts(t *testing.T) {
	cl, url, id := forked(t)
	dir := t.TempDir()
	made, err := cl.CreateContext(t.Context(), id, client.CodeContextRequest{Cwd: dir})
	if err != nil || made.ID == "" || made.Language != "python" || made.Cwd != dir {
		t.Fatalf("%+v, %v", made, err)
	}
	run := func(contextID, code string) client.Execution {
		t.Helper()
		e, err := cl.RunCode(t.Context(), id, client.CodeRequest{Code: code, ContextID: contextID}, client.CodeHandlers{})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	if e := run(made.ID, "import os; y = 1; os.getcwd()"); e.Text() != dir {
		t.Errorf("%+v", e)
	}
	if e := run("", "y"); e.Exception == nil || e.Exception.Name != "NameError" {
		t.Errorf("a variable of another context: %+v", e)
	}
	list, err := cl.Contexts(t.Context(), id)
	if err != nil || !strings.Contains(fmt.Sprint(list), made.ID) || list[0].ID != "python" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := cl.RestartEval(t.Context(), id, made.ID); err != nil {
		t.Error(err)
	}
	if e := run(made.ID, "y"); e.Exception == nil {
		t.Errorf("after a restart: %+v", e)
	}
	if err := cl.DeleteContext(t.Context(), id, made.ID); err != nil {
		t.Error(err)
	}
	if err := cl.DeleteContext(t.Context(), id, made.ID); !client.IsNotFound(err) {
		t.Errorf("deleted twice: %v", err)
	}
	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/code", `{"code":"1","context_id":"none"}`, 404, "not_found_in_sandbox"},
		{"/code", `{"code":"1","language":"cobol"}`, 400, "bad_request"},
		{"/code", `{"code":"1","language":"python","context_id":"python"}`, 400, "invalid_field"},
		{"/code", `{"code":"1","timeout_secs":3601}`, 400, "invalid_field"},
		{"/code", `{"code":"1","env":{"A=":"x"}}`, 400, "bad_request"},
		{"/code", `{"code":1}`, 400, "invalid_field"},
		{"/contexts", `{"language":"cobol"}`, 400, "bad_request"},
		{"/contexts", `{"cwd":"\u0000"}`, 400, "invalid_field"},
	} {
		status, answer := post(t, url+"/v1/sandboxes/"+id+c.path, c.body)
		if status != c.status || answer["code"] != c.code {
			t.Errorf("%s %s: %d %v, want %d %s", c.path, c.body, status, answer, c.status, c.code)
		}
	}
}

// The number of contexts is limited. Reaching the limit is not a failure of the sandbox.
func TestTooManyContexts(t *testing.T) {
	cl, _, id := forked(t)
	for range 70 { // contexts of bash, whose interpreter takes little memory
		_, err := cl.CreateContext(t.Context(), id, client.CodeContextRequest{Language: "bash"})
		if client.IsStatus(err, http.StatusConflict) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("70 contexts were made")
}

// An idle stream sends keepalives, so that a client can distinguish it from a broken connection.
func TestSilentStreamsHaveKeepalives(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{Keepalive: 50 * time.Millisecond}})
	id := fork(t, r, 1)[0].ID
	for path, body := range map[string]string{"/exec": `{"args":["sleep","30"]}`,
		"/code": `{"code":"import time; time.sleep(30)"}`} {
		req := requestOf(t, r.URL+"/v1/sandboxes/"+id+path)
		req.Method, req.Body = "POST", io.NopCloser(strings.NewReader(body))
		req.Header.Set("Accept", "application/x-ndjson")
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for n := 0; n < 3 && lines.Scan(); n++ {
			if want := `{"keepalive":true}`; n > 0 && lines.Text() != want ||
				n == 0 && !strings.HasPrefix(lines.Text(), `{"started":`) {
				t.Errorf("%s: line %d is %s", path, n, lines.Text())
			}
		}
		if lines.Err() != nil {
			t.Error(lines.Err())
		}
		resp.Body.Close()
	}
}
