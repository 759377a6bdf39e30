package eval

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/guest/userenv"
)

// newServer serves forkd's own interpreter as Python, even if the host has a Jupyter kernel.
func newServer(t *testing.T) (*Server, *httptest.Server) { return serve(t, nil, ownPython) }

// ownPython is backendOf, except that Python always uses drivers/main.py.
func ownPython(language string) (*backend, error) {
	b, err := backendOf(language)
	if language == python {
		b.driver = strings.TrimSuffix(b.driver, pythonMain) + "_serve_own()\n"
	}
	return b, err
}

// serve starts a server. It skips the test if there is no Python.
func serve(t *testing.T, env map[string]string, of func(string) (*backend, error)) (*Server, *httptest.Server) {
	t.Helper()
	s := New(Config{Reaper: reap.New(), Env: userenv.New(), Log: kmsg.NewPlain(io.Discard)})
	s.cfg.Env.Merge(env)
	s.backendOf = of
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		s.Close()
	})
	if _, err := s.defaultContext(python); err != nil {
		t.Skip(err)
	}
	return s, h
}

// run executes code and returns the stream's messages.
func run(t *testing.T, h *httptest.Server, req map[string]any) []map[string]any {
	t.Helper()
	body, _ := json.Marshal(req)
	resp, err := http.Post(h.URL+"/execute", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("execute: %s: %s", resp.Status, text)
	}
	var out []map[string]any
	lines := bufio.NewScanner(resp.Body)
	for lines.Buffer(nil, 32<<20); lines.Scan(); {
		var m map[string]any
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		out = append(out, m)
	}
	if n := len(out); n < 2 || out[0]["type"] != "number_of_executions" || out[n-1]["type"] != "end_of_execution" {
		t.Fatalf("stream is not framed: %v", out)
	}
	return out
}

func code(src string) map[string]any { return map[string]any{"code": src, "repr": true} }

// field joins the values of a field, over all messages of one type.
func field(msgs []map[string]any, kind, name string) string {
	var b strings.Builder
	for _, m := range msgs {
		if s, ok := m[name].(string); ok && m["type"] == kind {
			b.WriteString(s)
		}
	}
	return b.String()
}

func TestStatementsExpressionsAndState(t *testing.T) {
	_, h := newServer(t)
	if got := run(t, h, code("x = 20\ny = 1")); len(got) != 2 {
		t.Fatalf("statements gave %v", got)
	}
	if got := field(run(t, h, code("print('héé')\nx * 2 + y + 1")), "result", "text"); got != "42" {
		t.Fatalf("result = %q, want 42", got)
	}
	if got := field(run(t, h, code("'it'")), "result", "text"); got != "'it'" {
		t.Fatalf("repr = %q", got)
	}
	if got := field(run(t, h, map[string]any{"code": "'it'"}), "result", "text"); got != "it" {
		t.Fatalf("text = %q", got)
	}
	if got := field(run(t, h, code("import asyncio\nawait asyncio.sleep(0, 7)")), "result", "text"); got != "7" {
		t.Fatalf("await = %q", got)
	}
}

func TestOutputOfEverySourceArrivesBeforeTheEnd(t *testing.T) {
	_, h := newServer(t)
	got := run(t, h, code("import os, sys\nprint('a', end='')\nsys.stderr.write('e\\n')\nsys.stdout.flush()\nos.system('printf é; printf z >&2')\nNone"))
	if out, errs := field(got, "stdout", "text"), field(got, "stderr", "text"); out != "aé" || errs != "e\nz" {
		t.Fatalf("stdout %q, stderr %q", out, errs)
	}
	big := run(t, h, code("print('é' * 500000)"))
	if out := field(big, "stdout", "text"); out != strings.Repeat("é", 500000)+"\n" {
		t.Fatalf("%d bytes of output, want 1000001", len(out))
	}
}

func TestErrorsHaveATraceback(t *testing.T) {
	_, h := newServer(t)
	got := run(t, h, code("def f():\n    return 1/0\nf()"))
	if name := field(got, "error", "name"); name != "ZeroDivisionError" {
		t.Fatalf("name = %q", name)
	}
	tb := field(got, "error", "traceback")
	if !strings.Contains(tb, "return 1/0") || !strings.Contains(tb, "in f") || strings.Contains(tb, "forkd-driver") {
		t.Fatalf("traceback:\n%s", tb)
	}
	if name := field(run(t, h, code("1 +")), "error", "name"); name != "SyntaxError" {
		t.Fatalf("name = %q", name)
	}
	if name := field(run(t, h, code("raise SystemExit(3)")), "error", "name"); name != "SystemExit" {
		t.Fatalf("name = %q", name)
	}
}

func TestRichResultsAndDisplay(t *testing.T) {
	_, h := newServer(t)
	got := run(t, h, code("class R:\n  def _repr_html_(self): return '<b>'\n  def _repr_png_(self): return b'\\x89PNG'\n  def __repr__(self): return 'R'\ndisplay(1)\nR()"))
	if field(got, "result", "text") != "1R" || field(got, "result", "html") != "<b>" ||
		field(got, "result", "png") != "iVBORw==" {
		t.Fatalf("got %v", got)
	}
	if got[1]["is_main_result"] != false || got[2]["is_main_result"] != true {
		t.Fatalf("main result is marked wrongly: %v", got)
	}
}

func TestEnvironmentOfACallIsTakenBack(t *testing.T) {
	_, h := newServer(t)
	req := code("import os; os.environ['FORKD_T']")
	req["env_vars"] = map[string]string{"FORKD_T": "v"}
	if got := field(run(t, h, req), "result", "text"); got != "'v'" {
		t.Fatalf("with env_vars: %q", got)
	}
	if got := field(run(t, h, code("os.environ.get('FORKD_T', 'gone')")), "result", "text"); got != "'gone'" {
		t.Fatalf("afterwards: %q", got)
	}
}

func TestDeadInterpreterIsReportedAndReplaced(t *testing.T) {
	s, h := newServer(t)
	other, err := s.create("", python, "")
	if err != nil {
		t.Fatal(err)
	}
	inOther := func(src string) map[string]any {
		return map[string]any{"code": src, "context_id": other.ID, "repr": true}
	}
	run(t, h, inOther("kept = 5"))
	got := run(t, h, code("import os; os._exit(9)"))
	if field(got, "error", "name") != "UnexpectedEndOfExecution" || !strings.Contains(field(got, "error", "value"),
		"exit status 9") {
		t.Fatalf("got %v", got)
	}
	if got := field(run(t, h, code("1 + 1")), "result", "text"); got != "2" {
		t.Fatalf("after death: %q", got)
	}
	if got := field(run(t, h, inOther("kept")), "result", "text"); got != "5" {
		t.Fatalf("the other context lost its state: %q", got)
	}
}

func TestDisconnectInterruptsAndKeepsState(t *testing.T) {
	_, h := newServer(t)
	// One interrupt does not end this code. Code that calls os.system also survives an interrupt
	// that arrives just before the command has started.
	const stubborn = `try:\n  time.sleep(1000)\nexcept KeyboardInterrupt: pass\ntime.sleep(1000)`
	run(t, h, code("import os, time\nstate = 'kept'"))
	for _, endless := range []string{"while True: time.sleep(0.01)", "while True: pass", "os.system('sleep 1000')",
		stubborn} {
		disconnect(t, h, fmt.Sprintf(`{"code": "print('running', flush=True)\n%s"}`, endless))
		// If the endless code were still running, this call would wait for it.
		if got := field(run(t, h, code("state")), "result", "text"); got != "'kept'" {
			t.Fatalf("%s: state = %q", endless, got)
		}
	}
}

// disconnect starts code that prints "running", and closes the connection when this output has
// arrived.
func disconnect(t *testing.T, h *httptest.Server, body string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, h.URL+"/execute", strings.NewReader(body))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan() && !strings.Contains(lines.Text(), "running"); {
	}
	cancel()
	resp.Body.Close()
}

// A client can read the end of a call, disconnect, and immediately make a second call. The
// disconnection must not interrupt this second call.
func TestHangingUpAtTheEndDoesNotInterruptTheNextCall(t *testing.T) {
	_, h := newServer(t)
	for i := range 150 {
		resp, err := http.Post(h.URL+"/execute", "application/json", strings.NewReader(`{"code": "sum(range(20000))"}`))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		text := ""
		for !strings.Contains(text, "end_of_execution") && lines.Scan() {
			text += lines.Text()
		}
		resp.Body.Close() // the client leaves before the server has ended the stream
		if !strings.Contains(text, "199990000") {
			t.Fatalf("call %d: %s", i, text)
		}
	}
}

func TestContexts(t *testing.T) {
	s, h := newServer(t)
	resp, err := http.Post(h.URL+"/contexts", "application/json", strings.NewReader(`{"cwd": "/etc"}`))
	if err != nil {
		t.Fatal(err)
	}
	var c session
	json.NewDecoder(resp.Body).Decode(&c)
	resp.Body.Close()
	in := func(src string) map[string]any { return map[string]any{"code": src, "context_id": c.ID, "repr": true} }
	if got := field(run(t, h, in("import os; x = 1; os.getcwd()")), "result", "text"); got != "'/etc'" {
		t.Fatalf("cwd = %s", got)
	}
	if got := field(run(t, h, code("x")), "error", "name"); got != "NameError" {
		t.Fatalf("contexts share state: %q", got)
	}
	resp, err = http.Post(h.URL+"/contexts/"+c.ID+"/restart", "", nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	if got := field(run(t, h, in("x")), "error", "name"); got != "NameError" {
		t.Fatalf("restart kept state: %q", got)
	}
	if !s.remove(c.ID) || s.remove(c.ID) {
		t.Fatal("remove must report whether the context existed")
	}
	for body, want := range map[string]int{
		`{"code":"1","context_id":"` + c.ID + `"}`:     http.StatusNotFound,
		`{"code":"1","language":"cobol"}`:              http.StatusBadRequest,
		`{"code":"1","language":"r","context_id":"x"}`: http.StatusBadRequest,
		`{"code":`: http.StatusBadRequest,
	} {
		resp, err := http.Post(h.URL+"/execute", "application/json", strings.NewReader(body))
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %v %v, want %d", body, resp.StatusCode, err, want)
		}
	}
}

func TestIncomplete(t *testing.T) {
	for in, want := range map[string]int{"": 0, "a": 0, "é": 0, "\xc3": 1, "a\xe2\x82": 2, "\xf0\x9f\x98": 3,
		"\x80\x80": 0, "\xff": 0} {
		if got := incomplete([]byte(in)); got != want {
			t.Errorf("incomplete(%q) = %d, want %d", in, got, want)
		}
	}
}
