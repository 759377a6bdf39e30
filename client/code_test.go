package client

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/forkd/forkd/api/v1"
)

// An Execution holds at most CodeHandlers.Keep bytes of each output, and at most Keep bytes of
// results. The handlers receive all of the output.
func TestKeepOfCode(t *testing.T) {
	told := 0
	var e Execution
	run := codeRun{Execution: &e, on: CodeHandlers{Keep: 10240, Result: func(CodeResult) error { told++; return nil }}}
	value := v1.CodeEvent{Result: &v1.CodeResult{Data: map[string]json.RawMessage{"text/plain": []byte(`"42"`)}}}
	for range 10000 {
		if _, err := run.take(value); err != nil {
			t.Fatal(err)
		}
		if _, err := run.take(v1.CodeEvent{Stdout: "a line of output\n"}); err != nil {
			t.Fatal(err)
		}
	}
	if told != 10000 || len(e.Results) != 10 || run.stdout.text.Len() != 160*len("a line of output\n") || !e.Truncated {
		t.Errorf("%d results told, %d kept, %d bytes of output", told, len(e.Results), run.stdout.text.Len())
	}
}

// By default an Execution holds up to 64 MiB of each output, and up to 64 MiB of results. An output
// has no gap, but a result that fits is kept even after a result that is too large.
func TestDefaultKeepOfCode(t *testing.T) {
	var e Execution
	run := codeRun{Execution: &e}
	take := func(event v1.CodeEvent) {
		if _, err := run.take(event); err != nil {
			t.Fatal(err)
		}
	}
	take(v1.CodeEvent{Stdout: "fits"})
	if e.Truncated {
		t.Error("truncated too early")
	}
	part := strings.Repeat("x", 1<<20)
	for range 100 {
		take(v1.CodeEvent{Stdout: part})
		take(v1.CodeEvent{Stderr: part})
	}
	take(v1.CodeEvent{Stdout: "late"})
	shown := func(main bool, n int) v1.CodeEvent {
		data := map[string]json.RawMessage{"text/plain": []byte(`"` + strings.Repeat("x", n) + `"`)}
		return v1.CodeEvent{Result: &v1.CodeResult{Main: main, Data: data}}
	}
	for range 3 {
		take(shown(false, 30<<20))
	}
	take(shown(true, 10))
	stdout, stderr := run.stdout.text.String(), run.stderr.text.String()
	if len(stdout) != 63<<20+4 || strings.Contains(stdout, "late") || len(stderr) != 64<<20 || !e.Truncated {
		t.Errorf("%d and %d bytes of output, truncated: %v", len(stdout), len(stderr), e.Truncated)
	}
	if len(e.Results) != 3 || e.Text() != "xxxxxxxxxx" {
		t.Errorf("%d results, the main one: %.20q", len(e.Results), e.Text())
	}
}
