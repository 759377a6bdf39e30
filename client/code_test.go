package client

import (
	"encoding/json"
	"testing"

	v1 "github.com/forkd/forkd/api/v1"
)

// An Execution holds at most CodeHandlers.Keep bytes. The handlers receive all of the output.
func TestKeepOfCode(t *testing.T) {
	told := 0
	var e Execution
	run := codeRun{Execution: &e, on: CodeHandlers{Keep: 1000, Result: func(CodeResult) error { told++; return nil }}}
	value := v1.CodeEvent{Result: &v1.CodeResult{Data: map[string]json.RawMessage{"text/plain": []byte(`"42"`)}}}
	for range 10000 {
		if _, err := run.take(value); err != nil {
			t.Fatal(err)
		}
		if _, err := run.take(v1.CodeEvent{Stdout: "a line of output\n"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(e.Results)*sizeOf(*value.Result) + run.stdout.Len(); told != 10000 || got == 0 || got > 1000 {
		t.Errorf("%d results told, %d bytes kept", told, got)
	}
}
