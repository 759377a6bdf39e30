package mcp_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/internal/mcp"
)

// Code keeps its variables between calls. Its values, images and exceptions are shown.
func TestRunCode(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Run)
	id := c.spawn()
	type result struct {
		Outcome, Stdout, Stderr string
		Results                 []struct {
			Main    bool
			Text    string
			Formats []string
		}
		Error     *struct{ Name, Value, Traceback string }
		ContextID string `json:"context_id"`
		Omitted   int64  `json:"omitted_bytes"`
	}
	run := func(in args) (r result, answer *sdk.CallToolResult) {
		t.Helper()
		in["sandbox_id"] = id
		answer = c.call("run_code", in, &r)
		return r, answer
	}
	r, answer := run(args{"code": "import sys\nx = 6\nprint('hi')\nprint('no', file=sys.stderr)\nx * 7"})
	if r.Outcome != "finished" || r.Stdout != "hi\n" || r.Stderr != "no\n" || len(r.Results) != 1 || !r.Results[0].Main ||
		r.Results[0].Text != "42" {
		t.Errorf("%+v", r)
	}
	if got := text(answer); got != "stdout:\nhi\nstderr:\nno\nresult:\n42\n" {
		t.Errorf("the model reads %q", got)
	}
	if r, _ := run(args{"code": "x + 1"}); len(r.Results) != 1 || r.Results[0].Text != "7" {
		t.Errorf("a variable of the call before: %+v", r)
	}
	if r, answer := run(args{"code": "1 / 0"}); r.Outcome != "exception" || r.Error == nil ||
		r.Error.Name != "ZeroDivisionError" ||
		!strings.Contains(text(answer), "ZeroDivisionError") {
		t.Errorf("an exception: %+v: %s", r, text(answer))
	}
	other, _ := run(args{"code": "'x' in globals()", "new_context": true})
	if other.ContextID == "" || other.Results[0].Text != "False" {
		t.Errorf("a new context: %+v", other)
	}
	if r, _ := run(args{"code": "y = 1; 'x' in globals()", "context_id": other.ContextID}); r.Results[0].Text != "False" {
		t.Errorf("the same context: %+v", r)
	}
	png := []byte("\x89PNG\r\n\x1a\nimage")
	code := `class Plot:
    def _repr_png_(self): return __import__("base64").b64decode("` + base64.StdEncoding.EncodeToString(png) + `")
    def __repr__(self): return "a plot"
Plot()`
	r, answer = run(args{"code": code})
	image, ok := answer.Content[len(answer.Content)-1].(*sdk.ImageContent)
	if !ok || image.MIMEType != "image/png" || !bytes.Equal(image.Data, png) || r.Results[0].Text != "a plot" {
		t.Errorf("an image: %+v, %+v", r, answer.Content)
	}
	if r, _ := run(args{"code": "for i in range(100000): print(i)"}); r.Omitted == 0 ||
		!strings.HasPrefix(r.Stdout, "0\n") ||
		!strings.HasSuffix(r.Stdout, "99999\n") ||
		len(r.Stdout) > 50<<10 {
		t.Errorf("long output: %d omitted of %d", r.Omitted, len(r.Stdout))
	}
	if r, answer := run(args{"code": "while True: print('x' * 10000)"}); r.Outcome != "stopped" ||
		!strings.Contains(text(answer), "interrupted") {
		t.Errorf("endless output: %s", r.Outcome)
	}
	c.fails("run_code", args{"sandbox_id": id, "code": ""}, "code: is empty")
	c.fails("run_code", args{"sandbox_id": id, "code": "1", "language": "cobol"}, "language")
	c.fails("run_code", args{"sandbox_id": id, "code": "1", "context_id": "none"}, "404")
}
