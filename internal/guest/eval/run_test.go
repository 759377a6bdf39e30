package eval

import (
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
)

func within(timeout time.Duration, src string) map[string]any {
	return map[string]any{"code": src, "repr": true, "timeout_ms": timeout.Milliseconds()}
}

// post sends a request whose answer is not a stream.
func post(t *testing.T, h *httptest.Server, path, body string) (status int, text string) {
	t.Helper()
	resp, err := http.Post(h.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestAForkedCopyDoesNotAnswerForTheInterpreter(t *testing.T) {
	for _, fork := range []string{"os.fork()", "ctypes.CDLL(None).fork()"} {
		t.Run(fork, func(t *testing.T) {
			_, h := newServer(t)
			run(t, h, code("import os, ctypes; r = "+fork))
			for i := range 10 {
				if got := field(run(t, h, code(fmt.Sprint(i))), "result", "text"); got != fmt.Sprint(i) {
					t.Fatalf("%d evaluates to %q", i, got)
				}
			}
			// A forked copy of the interpreter can print and exit like any program.
			for rest, want := range map[string]string{
				"print('copy'); display(1); 2": "copy 0", "raise SystemExit(7)": " 7", "1/0": " 1",
			} {
				got := run(t, h, code(fmt.Sprintf("import sys\nif (r := %s) == 0: exec(%q)\nelse:\n"+
					"  status = os.waitpid(r, 0)[1]\n  sys.stdout.write(f' {os.waitstatus_to_exitcode(status)}\\n')", fork, rest)))
				if out := strings.Join(strings.Fields(field(got, "stdout", "text")), " "); out != strings.TrimSpace(want) {
					t.Errorf("%s: %q, want %q in %v", rest, out, want, got)
				}
				if strings.Contains(rest, "/0") && !strings.Contains(field(got, "stderr", "text"), "ZeroDivisionError") {
					t.Errorf("%s: the copy's error is missing in %v", rest, got)
				}
				if field(got, "result", "text") != "" || field(got, "error", "name") != "" {
					t.Errorf("%s: the copy answered: %v", rest, got)
				}
			}
		})
	}
}

// The agent must notice the end of an interpreter even if a forked copy of the interpreter still
// runs.
func TestDeathIsSeenThoughACopyLives(t *testing.T) {
	for _, fork := range []string{"os.fork()", "ctypes.CDLL(None).fork()"} {
		_, h := newServer(t)
		hold := filepath.Join(t.TempDir(), "hold") // the copy runs as long as this file exists
		if err := os.WriteFile(hold, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		got := run(t, h, code(fmt.Sprintf("import os, ctypes, time\nif %s: os._exit(9)\nwhile os.path.exists(%q): time.sleep(0.05)", fork, hold)))
		if err := os.Remove(hold); err != nil {
			t.Error(err)
		}
		if v := field(got, "error", "value"); !strings.Contains(v, "exit status 9") {
			t.Errorf("%s: %v", fork, got)
		}
	}
}

// stubborn code does not end when it is interrupted.
var stubborn = []string{
	"import time\nwhile True:\n  try: time.sleep(1)\n  except BaseException: pass",
	"sum(range(10**12))",
}

func TestStubbornCodeIsKilledAfterItsTimeoutAndTheClientTold(t *testing.T) {
	s, h := newServer(t)
	s.grace = 200 * time.Millisecond
	for _, src := range stubborn {
		run(t, h, code("state = 1"))
		got := run(t, h, within(time.Second, src)) // time for the code to begin; it is stubborn only while it runs
		if v := field(got, "error", "value"); !strings.Contains(v, "did not end when it was interrupted") ||
			!strings.Contains(v, "state is lost") {
			t.Errorf("%s: %v", src, got)
		}
		if m := got[len(got)-2]; m["type"] != "timeout" || m["restarted"] != true {
			t.Errorf("%s: %v", src, m)
		}
		again := run(t, h, code("'state' in globals()"))
		if field(again, "result", "text") != "False" || field(again, "stderr", "text") != "" {
			t.Errorf("after %s: %v", src, again)
		}
	}
}

func TestCodeThatEndsAfterItsTimeoutKeepsItsState(t *testing.T) {
	_, h := newServer(t)
	got := run(t, h, within(100*time.Millisecond, "import time; state = 'kept'; time.sleep(1000)"))
	if m := got[len(got)-2]; m["type"] != "timeout" || m["restarted"] != nil ||
		field(got, "error", "name") != "KeyboardInterrupt" {
		t.Errorf("%v", got)
	}
	if got := run(t, h, within(time.Minute, "state")); field(got, "result", "text") != "'kept'" || len(got) != 3 {
		t.Errorf("%v", got)
	}
}

func TestTheNextClientIsToldOfALostState(t *testing.T) {
	s, h := newServer(t)
	s.abandonedGrace = 100 * time.Millisecond
	run(t, h, code("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"))
	disconnect(t, h, `{"code": "print('running', flush=True)\nwhile True: pass"}`)
	got := run(t, h, code("1"))
	if text := field(got, "stderr", "text"); !strings.Contains(text, "state is lost") ||
		field(got, "result", "text") != "1" {
		t.Errorf("%v", got)
	}
	if got := run(t, h, code("2")); field(got, "stderr", "text") != "" {
		t.Errorf("told twice: %v", got)
	}
}

func TestABusyContextSaysSo(t *testing.T) {
	s, h := newServer(t)
	done := make(chan []map[string]any, 1)
	go func() {
		defer close(done) // run ends this goroutine when it fails
		done <- run(t, h, code("import time\ntime.sleep(1000)"))
	}()
	for len(s.list()) == 0 || !busy(s.get(python)) {
		time.Sleep(time.Millisecond)
	}
	status, text := post(t, h, "/execute", `{"code": "1", "timeout_ms": 20}`)
	if status != http.StatusConflict || !strings.Contains(text, "busy with an earlier call (started ") {
		t.Errorf("%d %s", status, text)
	}
	interrupted := `{"interrupted":true}`
	if status, text := post(t, h, "/contexts/python/interrupt", ""); status != http.StatusOK ||
		strings.TrimSpace(text) != interrupted {
		t.Errorf("%d %s", status, text)
	}
	if got := <-done; field(got, "error", "name") != "KeyboardInterrupt" {
		t.Errorf("%v", got)
	}
	if status, text := post(t, h, "/contexts/python/interrupt", ""); status != http.StatusOK ||
		strings.TrimSpace(text) == interrupted {
		t.Errorf("of an idle context: %d %s", status, text)
	}
	if status, _ := post(t, h, "/contexts/nosuch/interrupt", ""); status != http.StatusNotFound {
		t.Errorf("of no context: %d", status)
	}
	if status, text := post(t, h, "/execute", `{"code": "1", "timeout_ms": -1}`); status != http.StatusBadRequest ||
		!strings.Contains(text, "timeout_ms") {
		t.Errorf("%d %s", status, text)
	}
}

func busy(c *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running != nil
}

func TestRestartEndsStubbornCode(t *testing.T) {
	s, h := newServer(t)
	done := make(chan []map[string]any, 1)
	go func() {
		defer close(done)
		done <- run(t, h, code(stubborn[1]))
	}()
	for len(s.list()) == 0 || !busy(s.get(python)) {
		time.Sleep(time.Millisecond)
	}
	if status, text := post(t, h, "/contexts/python/restart", ""); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	if got := <-done; field(got, "error", "name") != "UnexpectedEndOfExecution" {
		t.Errorf("%v", got)
	}
	if got := field(run(t, h, code("1 + 1")), "result", "text"); got != "2" {
		t.Errorf("after the restart: %q", got)
	}
}

func TestAnOversizedResultIsCut(t *testing.T) {
	_, h := newServer(t)
	for _, src := range []string{"'x' * (30 << 20)",
		"class R:\n  def _repr_html_(self): return 'h' * (30 << 20)\n  def __repr__(self): return 'x'\nR()"} {
		got := run(t, h, code(src))
		text := field(got, "result", "text")
		if len(text) > 2<<20 || !strings.Contains(text, "x") || field(got, "result", "html") != "" {
			t.Errorf("%s: %d bytes of text", src, len(text))
		}
		if strings.Contains(src, "<<") && len(text) > 1 && !strings.HasSuffix(text, " more characters)") {
			t.Errorf("the text ends with %q", text[len(text)-40:])
		}
	}
	if got := field(run(t, h, code("raise ValueError('v' * (30 << 20))")), "error", "value"); !strings.HasSuffix(got,
		" more characters)") {
		t.Errorf("an error of %d bytes", len(got))
	}
	if got := field(run(t, h, code("1 + 1")), "result", "text"); got != "2" {
		t.Errorf("afterwards: %q", got)
	}
}

func TestWhatAThreadDisplaysAfterItsCallIsNotTheNextOnes(t *testing.T) {
	_, h := newServer(t)
	dir := t.TempDir()
	run(t, h, code(fmt.Sprintf(`import os, threading, time
def late():
  while not os.path.exists(%[1]q): time.sleep(0.01)
  display("late")
  open(%[2]q, "w").close()
threading.Thread(target=late).start()`, dir+"/go", dir+"/done")))
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for exists := false; !exists; time.Sleep(time.Millisecond) {
		_, err := os.Stat(dir + "/done")
		exists = err == nil
	}
	if got := run(t, h, code("5")); field(got, "result", "text") != "5" {
		t.Errorf("%v", got)
	}
}

// If an interpreter ends while a fork asks it to reseed, the fork succeeds, because that
// interpreter cannot repeat random numbers.
func TestAForkGoesOnWithoutAnInterpreterThatEnds(t *testing.T) {
	s, h := newServer(t)
	if got := run(t, h, code("1")); field(got, "error", "name") != "" {
		t.Fatal(got)
	}
	child := s.contexts[python].interp.child
	if err := child.SignalGroup(syscall.SIGSTOP); err != nil { // so that the process cannot answer before it ends
		t.Fatal(err)
	}
	forked := make(chan error, 1)
	go func() { forked <- s.Forked(nil) }()
	for s.contexts[python].mu.TryLock() { // wait until the request has been sent
		s.contexts[python].mu.Unlock()
	}
	if err := child.SignalGroup(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-forked; err != nil {
		t.Errorf("the fork's error is %v", err)
	}
}
