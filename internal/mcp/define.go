package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

// tool is one entry of the catalog.
type tool struct {
	spec  *sdk.Tool
	scope Scope
	input *jsonschema.Schema
	add   func(*sdk.Server)
}

// Hints about a tool. A client may use them to decide whether to ask its user before a call.
type hints int

const (
	readOnly    hints = 1 << iota // the tool changes nothing
	destructive                   // the tool removes something that cannot be restored
	idempotent                    // repeating a call with the same arguments has no further effect
	openWorld                     // the tool may have effects outside the daemon: on the internet, or in a guest
)

// limit adds limits to the schema of an argument. The schema itself is made by reflection from the
// Go type alone, so it has no limits.
type limit struct {
	argument string
	change   func(*jsonschema.Schema)
}

// between returns a limit that sets the range and the default of a number.
func between(argument string, least, most, def float64) limit {
	return limit{argument, func(s *jsonschema.Schema) {
		s.Minimum, s.Maximum, s.Default = &least, &most, mustJSON(def)
	}}
}

// within returns a limit that sets the range of a number. The number has no default.
func within(argument string, least, most float64) limit {
	return limit{argument, func(s *jsonschema.Schema) { s.Minimum, s.Maximum = &least, &most }}
}

// oneOf returns a limit that sets the permitted values of a text. The first value is the default.
func oneOf(argument string, values ...string) limit {
	return limit{argument, func(s *jsonschema.Schema) {
		for _, v := range values {
			s.Enum = append(s.Enum, v)
		}
		s.Default = mustJSON(values[0])
	}}
}

// among returns a limit that sets the permitted values of a text. The text has no default.
func among(argument string, values ...string) limit {
	return limit{argument, func(s *jsonschema.Schema) {
		for _, v := range values {
			s.Enum = append(s.Enum, v)
		}
	}}
}

// byDefault returns a limit that sets the default of an argument.
func byDefault(argument string, v any) limit {
	return limit{argument, func(s *jsonschema.Schema) { s.Default = mustJSON(v) }}
}

// items returns a limit that bounds the length of a list.
func items(argument string, least, most int) limit {
	return limit{argument, func(s *jsonschema.Schema) {
		if least > 0 {
			s.MinItems = &least
		}
		s.MaxItems = &most
	}}
}

// call is one call of a tool.
type call struct {
	*client.Client
	req     *sdk.CallToolRequest
	content []sdk.Content // text or images for the model; empty: the output as JSON
	made    made
}

// say sets the given text as the answer for the model, instead of JSON. Clients still receive the
// structured output.
func (c *call) say(text string) { c.content = append(c.content, &sdk.TextContent{Text: text}) }

// progress reports the progress of a call if the client has asked for progress reports. A total of
// 0 means that the total is unknown.
func (c *call) progress(ctx context.Context, done, total float64, message string) {
	token := c.req.Params.GetProgressToken()
	if token == nil {
		return
	}
	_ = c.req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ // fails only if the client has left
		ProgressToken: token, Progress: done, Total: total, Message: message,
	})
}

// tick is the interval of progress reports in a long call.
const tick = 5 * time.Second

// during calls f(). Every few seconds, it reports progress to the client: the seconds since the
// call of f, and the result of message().
func (c *call) during(ctx context.Context, message func() string, f func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	begun, ended := time.Now(), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(tick):
				c.progress(ctx, time.Since(begun).Seconds(), 0, message())
			}
		}
	}()
	err := f()
	cancel()
	<-ended // wait, because no report may follow the answer
	return err
}

// define makes a tool of a function. The fields of In describe the tool's arguments, and the fields
// of Out describe its result.
func define[In, Out any](
	name, description string,
	scope Scope,
	h hints,
	run func(context.Context, *call, In) (Out, error),
	limits ...limit,
) tool {
	input, output := schemaOf[In](), schemaOf[Out]()
	for _, l := range limits {
		l.change(input.Properties[l.argument])
	}
	spec := &sdk.Tool{
		Name: name, Description: description, InputSchema: input, OutputSchema: output,
		Annotations: &sdk.ToolAnnotations{
			Title: strings.ReplaceAll(name, "_", " "), ReadOnlyHint: h&readOnly != 0, DestructiveHint: new(h&destructive != 0),
			IdempotentHint: h&(idempotent|readOnly) != 0, OpenWorldHint: new(h&openWorld != 0),
		},
	}
	return tool{spec: spec, scope: scope, input: input, add: func(s *sdk.Server) {
		sdk.AddTool(s, spec, func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, Out, error) {
			c := &call{Client: clientOf(ctx), req: req}
			out, err := run(ctx, c, in)
			if left(ctx) != nil {
				c.takeBack(ctx)
			}
			if err == nil {
				err = tooLong(out, c.content)
			}
			return &sdk.CallToolResult{Content: c.content}, out, err
		})
	}}
}

// schemaOf returns the schema of a Go type. It panics on an error, because all these types belong
// to this program.
func schemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Sprintf("schema of %T: %v", *new(T), err))
	}
	return s
}

func mustJSON(v any) json.RawMessage {
	p, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("default %v: %v", v, err))
	}
	return p
}

// Problem is the description of an error of the API. It is in the metadata of a tool's answer,
// under ProblemKey.
type Problem struct {
	Status         int     `json:"status"`
	Code           string  `json:"code"`
	Detail         string  `json:"detail"`
	Field          string  `json:"field,omitempty"`
	Fix            string  `json:"fix,omitempty"`
	RetryAfterSecs float64 `json:"retry_after_secs,omitempty"`
}

// ProblemKey is the key of a Problem, in the metadata of a tool's answer and in the data of a
// protocol error.
const ProblemKey = "forkd/error"

// wrong returns an error for an invalid argument of a tool.
func wrong(argument, format string, args ...any) error {
	return &client.ArgumentError{Field: argument, Reason: fmt.Sprintf(format, args...)}
}

// problemOf returns the API's description of an error. Invalid arguments are found before a request
// is sent to the API. For them, problemOf makes an equivalent description.
func problemOf(err error) (Problem, bool) {
	var argument *client.ArgumentError
	if errors.As(err, &argument) {
		return Problem{Status: http.StatusBadRequest, Code: "invalid_field", Detail: err.Error(), Field: argument.Field,
			Fix: "correct the argument as the detail says"}, true
	}
	var e *client.Error
	if !errors.As(err, &e) {
		return Problem{}, false
	}
	return Problem{e.Status, e.Code, err.Error(), e.Field, e.Fix, e.RetryAfter.Seconds()}, true
}

// text returns a problem as text for a model.
func (p Problem) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s: %s", p.Status, p.Code, p.Detail)
	if p.Field != "" {
		fmt.Fprintf(&b, "\nfield: %s", p.Field)
	}
	if p.Fix != "" {
		fmt.Fprintf(&b, "\nfix: %s", p.Fix)
	}
	if help := helpful[p.Code]; help != "" {
		fmt.Fprintf(&b, "\ntools: %s", help)
	}
	if p.RetryAfterSecs > 0 {
		fmt.Fprintf(&b, "\nretry after: %g s", p.RetryAfterSecs)
	}
	return b.String()
}

// The variable helpful maps codes of errors to tools that help. The API's own advice names routes
// and commands, which a model may not be able to use.
var helpful = map[string]string{
	"sandbox_not_found":    "list_sandboxes shows what there is; spawn_sandboxes makes one",
	"snapshot_not_found":   "list_snapshots shows what there is; branch makes one",
	"not_found_in_sandbox": "list_files looks for it in the sandbox",
	"sandbox_state":        "get_sandbox shows the state; set_state with running lets it go on",
	"not_in_line":          "tree shows which snapshots have the same parent; spawn_sandboxes forks from any snapshot",
	"snapshot_exists":      "branch with another tag",
	"snapshot_in_use":      "tree shows what uses it; kill_sandbox first",
	"interpreter_busy":     "run_code with new_context, or wait",
	"timeout":              "start_command for what takes long, or a larger timeout_secs",
	"own_sandboxes":        "list_sandboxes and kill_sandbox, or set_state with suspended",
	"max_sandboxes":        "kill_sandbox, or set_state with suspended",
	"host_memory":          "kill_sandbox, or set_state with suspended",
	"volume_not_found":     "volumes lists and creates them",
	"volume_in_use":        "volumes shows the writer; kill_sandbox first",
	"no_volume_slots":      "list_snapshots shows which snapshots have slots",
}

// explained adds the API's description of an error to the metadata of the answer. The structured
// output cannot be used, because its schema describes only results.
func explained(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		result, err := next(ctx, method, req)
		r, ok := result.(*sdk.CallToolResult)
		if !ok || r == nil || !r.IsError || r.GetError() == nil {
			return result, shortError(err)
		}
		text := r.GetError().Error()
		if p, ok := problemOf(r.GetError()); ok {
			p.Detail, p.Fix, p.Field = shorten(p.Detail, maxError), shorten(p.Fix, maxError), shorten(p.Field, maxName)
			r.Meta = sdk.Meta{ProblemKey: p}
			text = p.text()
		}
		r.Content = []sdk.Content{&sdk.TextContent{Text: shorten(text, 2*maxError)}}
		return result, err
	}
}

// shortError shortens an error of the protocol. Such an error may quote the client's message.
func shortError(err error) error {
	var wire *jsonrpc.Error
	if !errors.As(err, &wire) || escaped(wire.Message)+escaped([]byte(wire.Data)) <= 2*maxError {
		return err
	}
	return &jsonrpc.Error{Code: wire.Code, Message: shorten(wire.Message, maxError)}
}

// errNoMethod is the protocol's error for an unknown method.
var errNoMethod = &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found"}

// undeclared are the methods that the SDK answers even if the server does not declare the
// capability for them.
var undeclared = []string{"prompts/", "completion/", "logging/"}

// refused is a middleware that answers undeclared methods with "method not found", as the protocol
// requires.
func refused(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if slices.ContainsFunc(undeclared, func(prefix string) bool { return strings.HasPrefix(method, prefix) }) {
			return nil, errNoMethod
		}
		return next(ctx, method, req)
	}
}

// withoutSession refuses subscriptions, and does not declare subscriptions as a capability. It is
// for transports that have no stream for notifications.
func withoutSession(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if method == "resources/subscribe" || method == "resources/unsubscribe" {
			return nil, errNoMethod
		}
		result, err := next(ctx, method, req)
		if r, ok := result.(*sdk.InitializeResult); ok && r != nil && r.Capabilities.Resources != nil {
			// Only copies are changed, because the originals belong to the server.
			capabilities, resources := *r.Capabilities, *r.Capabilities.Resources
			resources.Subscribe, capabilities.Resources = false, &resources
			r.Capabilities = &capabilities
		}
		return result, err
	}
}
