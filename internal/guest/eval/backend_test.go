package eval

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// dialect contains pieces of code in the language of one backend. Every backend has the same
// pieces, and the tests compare their output.
type dialect struct {
	language string
	env      func(t *testing.T) map[string]string // environment of the sandbox
	of       func(string) (*backend, error)

	set, get   string // set stores 41 in a variable; get prints the variable plus 1
	outAndErr  string // prints "out" and, to the other stream, "err"
	fail, name string // fail ends with an error; name is the name of this error
	broken     string // is not valid code
	variable   string // prints the variable FORKD_T, or "gone"
	directory  string // prints the working directory
	endless    string
	stubborn   string // does not end when it is interrupted; empty if the language does not permit such code
	exit       string // ends the process with status 9
	seed, draw string // after the same seed, draw prints the same numbers
}

func noEnv(*testing.T) map[string]string { return nil }

func jupyterEnv(t *testing.T) map[string]string {
	return map[string]string{"PATH": venv(t, "test-jupyter") + ":/usr/bin:/bin", "HOME": t.TempDir()}
}

func dialects() map[string]dialect {
	own := dialect{
		language: "python", env: noEnv, of: ownPython,
		set: "x = 41", get: "print(x + 1)",
		outAndErr: "import os, sys\nprint('out')\nos.system('echo err >&2')",
		fail:      "def f(): return 1/0\nf()", name: "ZeroDivisionError", broken: "1 +",
		variable: "import os; print(os.environ.get('FORKD_T', 'gone'))", directory: "import os; print(os.getcwd())",
		endless: "while True: pass", stubborn: "sum(range(10**12))", exit: "import os; os._exit(9)",
		seed: "import random; random.seed(1)", draw: "print(random.random())",
	}
	jupyter := own
	jupyter.env, jupyter.of = jupyterEnv, backendOf
	js := dialect{
		language: "js", env: noEnv, of: backendOf,
		set: "let x = 41", get: "console.log(x + 1)",
		outAndErr: "console.log('out'); require('child_process').spawnSync('sh', ['-c', 'echo err >&2'], {stdio: 'inherit'}); undefined",
		fail:      "function f() { return null.x }\nf()", name: "TypeError", broken: "1 +",
		variable: "console.log(process.env.FORKD_T ?? 'gone')", directory: "console.log(process.cwd())",
		endless: "while (true) {}", stubborn: "await 1\nwhile (true) {}", exit: "process.exit(9)",
		// JavaScript code cannot seed the generators of V8 and OpenSSL, so their functions are
		// replaced.
		draw: "console.log([Math.random, require('crypto').randomBytes, require('crypto').webcrypto.getRandomValues].map(f => /native|size/.test(f)).join())",
	}
	ts := js
	ts.language, ts.set, ts.fail = "ts", "let x: number = 41", "function f(): number { return (null as any).x }\nf()"
	return map[string]dialect{"own": own, "jupyter": jupyter, "javascript": js, "typescript": ts, "bash": {
		language: "bash", env: noEnv, of: backendOf,
		set: "x=41", get: "echo $((x + 1))", outAndErr: "echo out; sh -c 'echo err >&2'",
		fail: "f() { return 3; }; f", name: "ExitStatus", broken: "if then",
		variable: `echo "${FORKD_T-gone}"`, directory: "pwd", endless: "while :; do :; done", exit: "exit 9",
		seed: "RANDOM=1", draw: "echo $RANDOM",
	}}
}

// TestBackends checks the behaviour that clients may expect of every backend.
func TestBackends(t *testing.T) {
	for name, d := range dialects() {
		t.Run(name, func(t *testing.T) {
			s, h := serve(t, d.env(t), d.of)
			if status, text := post(t, h, "/execute", d.request("")); status != http.StatusOK {
				t.Skip(strings.TrimSpace(text))
			}
			t.Run("calls", func(t *testing.T) { d.testCalls(t, h) })
			t.Run("errors", func(t *testing.T) { d.testErrors(t, h) })
			t.Run("contexts", func(t *testing.T) { d.testContexts(t, s, h) })
			t.Run("interrupts", func(t *testing.T) { d.testInterrupts(t, s, h) })
			t.Run("forks", func(t *testing.T) { d.testForks(t, s, h) })
		})
	}
}

func (d dialect) request(code string) string {
	text, _ := json.Marshal(d.call(code))
	return string(text)
}

func (d dialect) call(code string) map[string]any {
	return map[string]any{"code": code, "language": d.language}
}

// prints runs code and returns its output, without the newline.
func (d dialect) prints(t *testing.T, h *httptest.Server, code string) string {
	t.Helper()
	return printed(run(t, h, d.call(code)))
}

func printed(messages []map[string]any) string {
	return strings.TrimSpace(field(messages, "stdout", "text"))
}

func (d dialect) testCalls(t *testing.T, h *httptest.Server) {
	first := run(t, h, d.call(d.set))
	if got := d.prints(t, h, d.get); got != "42" {
		t.Errorf("the state is %q", got)
	}
	second := run(t, h, d.call(d.outAndErr))
	if out, errs := field(second, "stdout", "text"), field(second, "stderr", "text"); out != "out\n" || errs != "err\n" {
		t.Errorf("stdout %q, stderr %q", out, errs)
	}
	if n := second[0]["execution_count"].(float64) - first[0]["execution_count"].(float64); n != 2 {
		t.Errorf("two calls count as %v", n)
	}
	with := d.call(d.variable)
	with["env_vars"] = map[string]string{"FORKD_T": "it's $HOME\n\"é\""}
	if got := printed(run(t, h, with)); got != "it's $HOME\n\"é\"" {
		t.Errorf("the call's variable is %q", got)
	}
	if got := d.prints(t, h, d.variable); got != "gone" {
		t.Errorf("after the call its variable is %q", got)
	}
}

func (d dialect) testErrors(t *testing.T, h *httptest.Server) {
	got := run(t, h, d.call(d.fail))
	if name := field(got, "error", "name"); name != d.name {
		t.Errorf("the error is %q: %v", name, got)
	}
	if tb := field(got, "error", "traceback"); d.language != "bash" && !strings.Contains(tb, "f") ||
		strings.Contains(tb, "forkd-driver") {
		t.Errorf("traceback:\n%s", tb)
	}
	if got := run(t, h, d.call(d.broken)); field(got, "error", "name") == "" {
		t.Errorf("%q gives no error: %v", d.broken, got)
	}
	run(t, h, d.call(d.set))
	got = run(t, h, d.call(d.exit))
	if v := field(got, "error", "value"); !strings.Contains(v, "exit status 9") || !strings.Contains(v, "state is lost") {
		t.Errorf("at its end: %v", got)
	}
	for _, m := range got {
		if m["type"] == "error" && m["traceback"] == nil { // E2B's client for Python requires a traceback
			t.Errorf("an error without a traceback: %v", m)
		}
	}
	if got := d.prints(t, h, d.get); got == "42" {
		t.Error("the next interpreter has the state of the last")
	}
}

func (d dialect) testContexts(t *testing.T, s *Server, h *httptest.Server) {
	status, text := post(t, h, "/contexts", fmt.Sprintf(`{"language": %q, "cwd": "/etc"}`, d.language))
	var c session
	if err := json.Unmarshal([]byte(text), &c); err != nil || c.Language != languageOf(d.language) {
		t.Fatalf("%d %s", status, text)
	}
	in := func(code string) string {
		return printed(run(t, h, map[string]any{"code": code, "context_id": c.ID}))
	}
	if got := in(d.directory); got != "/etc" {
		t.Errorf("its directory is %q", got)
	}
	run(t, h, d.call(d.set))
	if got := in(d.get); got == "42" {
		t.Error("it shares its state with the default context")
	}
	run(t, h, map[string]any{"code": d.set, "context_id": c.ID})
	if status, text := post(t, h, "/contexts/"+c.ID+"/restart", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	if got := in(d.get); got == "42" {
		t.Error("its state has outlived its restart")
	}
	if !s.remove(c.ID) {
		t.Error("it is gone")
	}
}

func (d dialect) testInterrupts(t *testing.T, s *Server, h *httptest.Server) {
	run(t, h, d.call(d.set))
	req := d.call(d.endless)
	req["timeout_ms"] = 1000
	got := run(t, h, req)
	if name := field(got, "error", "name"); name != "KeyboardInterrupt" || got[len(got)-2]["type"] != "timeout" {
		t.Errorf("%v", got)
	}
	disconnect(t, h, d.request(strings.Replace(d.outAndErr, "out", "running", 1)+"\n"+d.endless))
	if got := run(t, h, d.call(d.get)); printed(got) != "42" {
		t.Errorf("after its interrupts: %v", got)
	}
	if d.stubborn == "" {
		return
	}
	s.grace = 200 * time.Millisecond
	req["code"] = d.stubborn
	if got := run(t, h, req); got[len(got)-2]["restarted"] != true {
		t.Errorf("%v", got)
	}
	s.grace = interruptGrace
}

func (d dialect) testForks(t *testing.T, s *Server, h *httptest.Server) {
	run(t, h, d.call(d.seed))
	before := d.prints(t, h, d.draw)
	run(t, h, d.call(d.seed))
	if again := d.prints(t, h, d.draw); again != before {
		t.Fatalf("it draws %s and %s: this proves nothing", before, again)
	}
	for _, prepared := range []bool{false, true} {
		run(t, h, d.call(d.seed))
		run(t, h, d.call(d.set))
		if prepared {
			if err := s.Prepare(); err != nil {
				t.Fatal(err)
			}
		}
		value := fmt.Sprint(prepared)
		if err := s.Forked(map[string]string{"FORKD_T": value}); err != nil {
			t.Fatal(err)
		}
		if got := d.prints(t, h, d.draw); got == before || got == "" {
			t.Errorf("after a fork it draws %q as before", got)
		}
		if got := d.prints(t, h, d.variable); got != value {
			t.Errorf("the variable of the fork is %q, want %q", got, value)
		}
		if got := d.prints(t, h, d.get); got != "42" {
			t.Errorf("after a fork the state is %q", got)
		}
	}
}

// A call must end even if the description of its result raises an exception.
func TestWhatCannotBeDescribedEndsItsCall(t *testing.T) {
	_, h := serve(t, nil, ownPython)
	for language, code := range map[string]string{
		"python": "class E(Exception):\n  def __str__(self): raise ValueError\nraise E",
		"js":     "throw new (class extends Error { get message() { throw 1 } get stack() { throw 2 } })()",
	} {
		status, text := post(t, h, "/execute", fmt.Sprintf(`{"code": %q, "language": %q}`, code, language))
		if status == http.StatusBadRequest {
			t.Log(text)
			continue
		}
		if !strings.Contains(text, "without a message") || !strings.Contains(text, "end_of_execution") {
			t.Errorf("%s: %s", language, text)
		}
	}
}

func TestUnsupportedLanguages(t *testing.T) {
	_, h := serve(t, map[string]string{"PATH": "/nonexistent"}, func(language string) (*backend, error) {
		b, err := backendOf(language)
		if language == python {
			b.program = "../bin/sh" // replaced by a program that every system has
		}
		return b, err
	})
	for language, want := range map[string]string{
		"cobol": "is not supported; use python", "js": "needs node, which is not installed", "Bash": "needs bash, which",
	} {
		for path, body := range map[string]string{"/execute": `{"code": "1", "language": %q}`,
			"/contexts": `{"language": %q}`} {
			if status, text := post(t, h, path, fmt.Sprintf(body, language)); status != http.StatusBadRequest ||
				!strings.Contains(text, want) {
				t.Errorf("%s %s: %d %s", path, language, status, text)
			}
		}
	}
	if status, text := post(t, h, "/contexts", ""); status != http.StatusBadRequest {
		t.Errorf("%d %s", status, text)
	}
}
