package eval

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestForkReseedsIdleAndBusyInterpreters(t *testing.T) {
	s, h := newServer(t)
	draw := "random.seed(1); uuid.uuid1()\nimport ssl"
	run(t, h, code("import random, uuid, types, sys, forkd\nfake = types.SimpleNamespace(calls=0)\ndef seed(*a): fake.calls += 1\nfake.seed = seed\nsys.modules['numpy.random'] = fake\n"+draw))
	if err := s.Prepare(); err != nil {
		t.Fatal(err)
	}
	run(t, h, code("random.seed(1)\nseen = []\n@forkd.on_fork\ndef cb(): seen.append(random.random())"))
	if err := s.Forked(map[string]string{"FORKD_CHILD": "7"}); err != nil {
		t.Fatal(err)
	}
	got := field(run(t, h,
		code("import os\n(os.environ['FORKD_CHILD'], fake.calls, len(seen), random.random() != random.Random(1).random())")),
		"result", "text")
	if got != "('7', 2, 1, True)" {
		t.Fatalf("after fork: %s", got)
	}
	// The code waits for a callback that the fork runs. So it can end only if the interpreter
	// handles control requests while code runs.
	done := make(chan []map[string]any, 1)
	go func() {
		defer close(done) // run ends this goroutine when it fails
		done <- run(t, h, code("print('busy')\nwhile len(seen) < 2: pass\nlen(seen) >= 2"))
	}()
	for {
		select {
		case got := <-done:
			if text := field(got, "result", "text"); text != "True" {
				t.Fatalf("busy: %v", got)
			}
			return
		default:
			// If the loop has not begun yet, the interpreter is idle during this fork. The fork
			// must succeed in this case too.
			if err := s.Forked(nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// A fork does not wake an idle interpreter, because no code can run in it. But it must be reseeded
// before its next call.
func TestAnIdleInterpreterReseedsBeforeItsNextCall(t *testing.T) {
	s, h := newServer(t)
	run(t, h, code("import os, random"))
	if err := s.Prepare(); err != nil {
		t.Fatal(err)
	}
	id := s.order[0]
	run(t, h, code("random.seed(1)"))
	if s.contexts[id].interp.idle {
		t.Fatal("an interpreter that ran code still counts as idle")
	}
	if err := s.Prepare(); err != nil {
		t.Fatal(err)
	}
	if !s.contexts[id].interp.idle {
		t.Fatal("an interpreter without threads, timers and callbacks is not idle after prepare")
	}
	for _, env := range []map[string]string{{"A": "1", "B": "1"}, {"B": "2"}} {
		if err := s.Forked(env); err != nil {
			t.Fatal(err)
		}
	}
	if s.contexts[id].interp.late.Op == "" {
		t.Fatal("the fork woke an idle interpreter")
	}
	got := field(run(t, h, code("(os.environ['A'], os.environ['B'], random.random() != random.Random(1).random())")),
		"result", "text")
	if got != "('1', '2', True)" {
		t.Fatalf("after fork: %s", got)
	}
	run(t, h, code("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"))
	if err := s.Prepare(); err != nil {
		t.Fatal(err)
	}
	if s.contexts[id].interp.idle {
		t.Fatal("an interpreter with a thread of the user's counts as idle")
	}
}

// A call takes its turn before its code reaches the driver. Until the code reaches the driver, the
// driver reports that the interpreter is idle, but the interpreter must not count as idle.
func TestPrepareDoesNotCallAnInterpreterIdleWhoseCodeIsOnItsWay(t *testing.T) {
	s, h := newServer(t)
	run(t, h, code("None"))
	c := s.get(python)
	<-c.turn
	err := s.Prepare()
	c.turn <- struct{}{}
	if err != nil || c.interp.idle {
		t.Fatalf("idle %v, %v", c.interp.idle, err)
	}
}

// As soon as a client has read the last line of an execution, it can request the preparation. So
// the context must be free before this line is sent.
func TestContextIsFreeWhenTheLastLineIsRead(t *testing.T) {
	s, h := newServer(t)
	run(t, h, code("None"))
	c := s.get(python)
	last := false
	if err := s.execute(t.Context(), c, runRequest{Code: "None"}, 0, func(line []byte) {
		if last = bytes.Contains(line, []byte("end_of_execution")); !last {
			return
		}
		if err := s.Prepare(); err != nil || !c.interp.idle {
			t.Errorf("idle %v, %v", c.interp.idle, err)
		}
	}); err != nil || !last {
		t.Fatalf("last line: %t, %v", last, err)
	}
}

func TestAForkThatWasPutOffAndFailsEndsTheInterpreter(t *testing.T) {
	s, h := newServer(t)
	run(t, h, code("import random; random.seed(1)"))
	if err := s.Prepare(); err != nil {
		t.Fatal(err)
	}
	s.get(python).interp.late = controlRequest{Op: "nonsense"}
	resp, err := http.Post(h.URL+"/execute", "application/json", strings.NewReader(`{"code":"1"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		t.Error("code ran in an interpreter that could not take up its identity")
	}
	if got := field(run(t, h, code("'random' in globals()")), "result", "text"); got != "False" {
		t.Errorf("the next call found the old state: %s", got)
	}
}

func TestForkFailsIfACallbackDoes(t *testing.T) {
	s, h := newServer(t)
	run(t, h, code("import forkd\n@forkd.on_fork\ndef cb(): raise ValueError('not me')"))
	if err := s.Forked(nil); err == nil || !strings.Contains(err.Error(), "ValueError: not me") {
		t.Fatalf("err = %v", err)
	}
}
