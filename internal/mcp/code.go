package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

func codeTools() []tool {
	return []tool{
		define(
			"run_code",
			"Run code in a warm interpreter of a sandbox. Variables, imports and functions stay for later calls, and copies of the sandbox have them too. "+
				"Returns what the code printed, the value of its last expression, and plots as images.",
			Run,
			destructive|openWorld,
			runCode,
			oneOf("language", "python", "javascript", "typescript", "bash"),
			between("timeout_secs", 1, 3600, 60),
		),
	}
}

// Bounds on the output of code.
const (
	maxPrinted = 8 << 20 // bytes of output after which the code is interrupted
	maxValues  = 4 << 20 // bytes of displayed values that are kept
	maxShown   = 8       // images in one answer
	maxFormats = 16      // media types listed for one value

	// maxShownText bounds the text of displayed values, and maxMainText bounds the text of the last
	// expression's value. Both are bytes of JSON.
	maxShownText = 128 << 10
	maxMainText  = 320 << 10
)

type codeArgs struct {
	SandboxID   string            `json:"sandbox_id"`
	Code        string            `json:"code"`
	Language    string            `json:"language,omitempty"`
	ContextID   string            `json:"context_id,omitempty" jsonschema:"interpreter with its own variables, from an earlier call; empty: the language's default interpreter"`
	NewContext  bool              `json:"new_context,omitempty" jsonschema:"run the code in a new context, whose id is in the answer"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty"`
	Env         map[string]string `json:"env,omitempty" jsonschema:"environment variables, only for this call"`
}

type shownValue struct {
	Main    bool     `json:"main" jsonschema:"true for the value of the last expression; false for a value that was displayed"`
	Text    string   `json:"text,omitempty"`
	Formats []string `json:"formats" jsonschema:"available media types; images are in the content of the answer"`
}

type codeError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

type codeResult struct {
	Outcome   string       `json:"outcome" jsonschema:"finished, exception, timeout, died, or stopped (the code printed too much)"`
	Stdout    string       `json:"stdout"`
	Stderr    string       `json:"stderr"`
	Results   []shownValue `json:"results"`
	Error     *codeError   `json:"error,omitempty" jsonschema:"exception that the code did not catch"`
	ContextID string       `json:"context_id,omitempty" jsonschema:"id of a new context"`
	StateLost bool         `json:"state_lost,omitempty" jsonschema:"the variables of the context are lost"`
	Omitted   int64        `json:"omitted_bytes,omitempty" jsonschema:"bytes omitted from the middle of the outputs, and from values for which there was no room"`
}

func runCode(ctx context.Context, c *call, in codeArgs) (r codeResult, err error) {
	req := client.CodeRequest{
		Code:        in.Code,
		Language:    in.Language,
		ContextID:   in.ContextID,
		TimeoutSecs: in.TimeoutSecs,
		Env:         in.Env,
	}
	switch {
	case in.Code == "":
		return r, wrong("code", "is empty")
	case in.NewContext && in.ContextID != "":
		return r, wrong("new_context", "goes without context_id")
	case in.NewContext:
		made, err := c.CreateContext(ctx, in.SandboxID, client.CodeContextRequest{Language: in.Language})
		if err != nil {
			return r, err
		}
		req.ContextID, r.ContextID = made.ID, made.ID
	}
	if req.ContextID != "" {
		req.Language = "" // a context has its own language
	}
	stdout, stderr := newExcerpt(headOutput, tailOutput), newExcerpt(headOutput, tailOutput)
	print := func(to *excerptWriter) func(string) error {
		return func(text string) error {
			if stdout.total+stderr.total+int64(len(text)) > maxPrinted {
				return errPrinted
			}
			_, err := to.Write([]byte(text))
			return err
		}
	}
	size := 0
	result := func(v client.CodeResult) error {
		for name, data := range v.Data {
			size += len(name) + len(data)
		}
		if size += 64; size > maxPrinted { // each event counts, even without text
			return errPrinted
		}
		return nil
	}
	var e client.Execution
	err = c.during(ctx, func() string { return "the code runs" }, func() error {
		e, err = c.RunCode(ctx, in.SandboxID, req, client.CodeHandlers{
			Stdout: print(stdout), Stderr: print(stderr), Result: result, Keep: maxValues,
		})
		return err
	})
	if errors.Is(err, errPrinted) {
		e.Outcome, err = "stopped", nil
	}
	if err != nil {
		return r, err
	}
	r.Outcome, r.StateLost, r.Results = shorten(e.Outcome, maxName), e.StateLost, []shownValue{}
	r.Stdout, r.Stderr, r.Omitted = stdout.text(), stderr.text(), stdout.omitted()+stderr.omitted()
	if x := e.Exception; x != nil {
		r.Error = &codeError{shorten(x.Name, maxName), shortened(x.Value), shortened(x.Traceback)}
	}
	// There are two bounds, so that displayed values leave room for the value of the last
	// expression.
	values, main := room(maxShownText), room(maxMainText)
	for _, v := range e.Results {
		left, shown := &values, shownOf(v)
		if v.Main {
			left = &main
		}
		if left.fits(shown) {
			r.Results = append(r.Results, shown)
		} else {
			r.Omitted += int64(len(shown.Text))
		}
	}
	c.say(r.words())
	c.show(e.Results)
	return r, nil
}

// shownOf describes a displayed value. The guest chooses the media types of the value.
func shownOf(v client.CodeResult) shownValue {
	formats := slices.Sorted(maps.Keys(v.Data))
	formats = formats[:min(len(formats), maxFormats)]
	for i := range formats {
		formats[i] = shorten(formats[i], maxName)
	}
	return shownValue{v.Main, valueText(v), append([]string{}, formats...)}
}

var errPrinted = fmt.Errorf("the code printed or showed more than %d MiB", maxPrinted>>20)

// textForms are the media types of text that a model can read, the best first.
var textForms = []string{"text/markdown", "text/plain", "text/latex", "text/html", "image/svg+xml"}

func valueText(v client.CodeResult) string {
	for _, form := range textForms {
		if text := v.Text(form); text != "" {
			return shortened(text)
		}
	}
	if p := v.Data["application/json"]; json.Valid(p) {
		return shortened(string(p))
	}
	return ""
}

func shortened(text string) string {
	text, _ = cut(text, false)
	return text
}

// show adds the images among the given values to the answer.
func (c *call) show(values []client.CodeResult) {
	shown, bytes := 0, 0
	for _, v := range values {
		for _, form := range []string{"image/png", "image/jpeg"} {
			data := v.Bytes(form)
			switch {
			case data == nil:
				continue
			case shown == maxShown:
				c.say(fmt.Sprintf("[… more than %d images: the others are omitted …]", maxShown))
				return
			case len(data) > maxImage, bytes+len(data) > 2*maxImage:
				c.say(fmt.Sprintf("[… an image of %d bytes is omitted: make it smaller, or save it to a file …]", len(data)))
			default:
				c.content = append(c.content, &sdk.ImageContent{Data: data, MIMEType: form})
				shown++
				bytes += len(data)
			}
			break // only one form of each value is shown
		}
	}
}

// words returns a result as text for a model.
func (r *codeResult) words() string {
	var b strings.Builder
	part := func(name, text string) {
		if text = strings.TrimRight(text, "\n"); text != "" {
			fmt.Fprintf(&b, "%s:\n%s\n", name, text)
		}
	}
	part("stdout", r.Stdout)
	part("stderr", r.Stderr)
	for _, v := range r.Results {
		if v.Main {
			part("result", v.Text)
		} else {
			part("shown", v.Text)
		}
	}
	if r.Error != nil {
		part("exception", r.Error.Traceback)
	}
	if r.Outcome != "finished" || b.Len() == 0 {
		fmt.Fprintf(&b, "outcome: %s\n", r.Outcome)
	}
	if r.Outcome == "stopped" {
		fmt.Fprintf(&b, "%v, and was interrupted\n", errPrinted)
	}
	if r.StateLost {
		b.WriteString("The variables of the context are lost: its interpreter has been started again.\n")
	}
	if r.ContextID != "" {
		fmt.Fprintf(&b, "context_id: %s\n", r.ContextID)
	}
	return b.String()
}
