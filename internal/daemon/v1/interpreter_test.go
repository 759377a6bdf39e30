package v1_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// Endless code can be interrupted. If code ignores the interrupt, a restart kills its interpreter
// and starts a new one.
func TestInterpreterIsInterruptedAndRestarted(t *testing.T) {
	cl, url, id := forked(t)
	ctx := t.Context()
	begun := filepath.Join(t.TempDir(), "begun") // the faked guest uses the host's file system
	start := func(code string) chan client.EvalResult {
		ended := make(chan client.EvalResult, 1)
		go func() {
			code = "x = 1; import time; open('" + begun + "', 'w').close()\n" + code
			r, err := cl.Eval(ctx, id, client.EvalRequest{Code: code, TimeoutSecs: 3600})
			if err != nil {
				r.Error = err.Error()
			}
			ended <- r
		}()
		for {
			if err := os.Remove(begun); err == nil {
				return ended
			} else if !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			select {
			case r := <-ended:
				t.Fatalf("the code ended: %+v", r)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	ended := start("time.sleep(3600)")
	if ran, err := cl.InterruptEval(ctx, id, ""); err != nil || !ran {
		t.Errorf("interrupt: %v, %v", ran, err)
	}
	if r := <-ended; !strings.Contains(r.Error, "KeyboardInterrupt") {
		t.Errorf("interrupted code: %+v", r)
	}
	if ran, err := cl.InterruptEval(ctx, id, "python"); err != nil || ran {
		t.Errorf("interrupt of nothing: %v, %v", ran, err)
	}
	ended = start("while True:\n try: time.sleep(1)\n except BaseException: pass")
	if err := cl.RestartEval(ctx, id, ""); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.Error == "" {
		t.Errorf("code whose interpreter was restarted: %+v", r)
	}
	if r, err := cl.Eval(ctx, id, client.EvalRequest{Code: "x"}); err != nil || !strings.Contains(r.Error, "NameError") {
		t.Errorf("a variable of the old interpreter: %+v, %v", r, err)
	}
	for path, want := range map[string]int{"/eval/interrupt": 404, "/eval/restart": 404} {
		if status, _ := post(t, url+"/v1/sandboxes/"+id+path, `{"context_id":"none"}`); status != want {
			t.Errorf("%s of an unknown context: %d, want %d", path, status, want)
		}
		if status, _ := post(t, url+"/v1/sandboxes/sb-none"+path, ``); status != want {
			t.Errorf("%s in an unknown sandbox: %d, want %d", path, status, want)
		}
		if status, _ := post(t, url+"/v1/sandboxes/"+id+path, `{"context":"x"}`); status != 400 {
			t.Errorf("%s with an unknown field: %d", path, status)
		}
	}
}

// A result that is too long is truncated and marked. The daemon truncates some results, and the
// guest truncates others.
func TestLongResultsAreCut(t *testing.T) {
	cl, _, id := forked(t)
	for code, want := range map[string]string{
		"'x' * (9 << 20)":  "bytes in all)",
		"'y' * (25 << 20)": "more characters)",
	} {
		r, err := cl.Eval(t.Context(), id, client.EvalRequest{Code: code, TimeoutSecs: 600})
		if err != nil || r.Result == nil || len(*r.Result) < 1<<20 || !strings.HasSuffix(*r.Result, want) {
			t.Errorf("%s: %v, error %q, truncated %v", code, err, r.Error, r.Truncated)
			continue
		}
		if len(*r.Result) > 9<<20 || (*r.Result)[:2] != "'"+code[1:2] {
			t.Errorf("%s: %d bytes", code, len(*r.Result))
		}
	}
}
