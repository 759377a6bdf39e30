package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/client"
)

// Daemon is the daemon that scenarios use.
type Daemon struct {
	URL, Token string
	Snapshot   string
	Tmp        string // a directory that exists in sandboxes
	File       string // file on the daemon's host; set only for the fake daemon
	Fake       bool
}

// Object is an object on which an operation can be called.
type Object struct {
	Kind   string
	Fields map[string]any
	handle any
}

// runner runs one scenario through the Go client.
type runner struct {
	ctx    context.Context
	daemon Daemon
	client *client.Client
	saved  map[string]any
	undo   []func()
}

// Timeout limits a scenario. Only a step that hangs exceeds it.
const Timeout = 2 * time.Minute

// Run runs a scenario. The name must be unique in this run, and consist of lower-case letters and
// digits.
func Run(ctx context.Context, d Daemon, s Scenario, name string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	c, err := client.New(d.URL, d.Token, client.WithRetries(3))
	if err != nil {
		return err
	}
	r := &runner{ctx: ctx, daemon: d, client: c, saved: map[string]any{
		"snapshot": d.Snapshot, "tmp": strings.TrimSuffix(d.Tmp, "/") + "/" + name, "run": name, "url": d.URL,
		"token": d.Token,
	}, undo: []func(){c.Close}}
	if d.File != "" {
		r.saved["file"] = d.File
	}
	defer func() {
		for _, step := range s.Finally {
			_ = r.step(step) // clean up; errors are ignored
		}
		for _, undo := range slices.Backward(r.undo) {
			undo()
		}
	}()
	for i, step := range s.Steps {
		if err := r.step(step); err != nil {
			return fmt.Errorf("step %d: %s: %w", i+1, step.Do, err)
		}
	}
	return nil
}

func (r *runner) step(s Step) error {
	var of any
	with, err := filled(s.With, r.saved)
	if err == nil && s.Of != "" {
		of, err = filled(s.Of, r.saved)
	}
	if err != nil {
		return err
	}
	var object *Object
	if s.Of != "" {
		var ok bool
		if object, ok = of.(*Object); !ok {
			return fmt.Errorf("%s is no object", s.Of)
		}
	}
	result, err := r.do(s.Do, object, arguments(with.(map[string]any)))
	if s.Error != nil {
		if err == nil {
			return fmt.Errorf("it did not fail, and returned %s", shown(result))
		}
		fields := r.errorFields(err)
		if s.Save != "" {
			r.saved[s.Save] = fields
		}
		return r.compare(*s.Error, fields, err.Error())
	}
	if err != nil {
		return fmt.Errorf("%w (%T)", err, err)
	}
	if s.Save != "" {
		r.saved[s.Save] = result
	}
	return r.compare(s.Expect, result, shown(result))
}

func (r *runner) compare(expect map[string]any, got any, whole string) error {
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(expect)) {
		want, err := filled(expect[path], r.saved)
		if err == nil {
			err = holds(want, at(got, path))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	if len(errs) > 0 {
		errs = append(errs, errors.New("of "+whole))
	}
	return errors.Join(errs...)
}

// do(op, of, with) calls an operation of the client.
func (r *runner) do(op string, of *Object, with arguments) (any, error) {
	switch op {
	case "rig.faults", "rig.state":
		return r.rig(op, with)
	case "sleep":
		seconds, _ := number(with["seconds"])
		time.Sleep(time.Duration(seconds * float64(time.Second)))
		return nil, nil
	case "directory":
		return r.directory(with)
	case "number":
		return strconv.Atoi(strings.TrimSpace(with.text("text")))
	}
	o, ok := operations()[op]
	if !ok {
		return nil, errors.New("the Go client does not have it")
	}
	return o.call(r, of, with)
}

// rig calls an operation of the fake daemon.
func (r *runner) rig(op string, with arguments) (any, error) {
	method, url := http.MethodPost, r.daemon.URL+"/_rig/faults"
	if op == "rig.state" {
		method, url = http.MethodGet, r.daemon.URL+"/_rig/state"
	}
	body, err := json.Marshal(with)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(r.ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		return nil, fmt.Errorf("%s: %s, %w", resp.Status, answer, err)
	}
	if op == "rig.faults" {
		return nil, nil
	}
	var state map[string]any
	return state, json.Unmarshal(answer, &state)
}

// errorFields returns the fields of an error that scenarios can compare.
func (r *runner) errorFields(err error) map[string]any {
	var (
		answer  *client.Error
		wrong   *client.ArgumentError
		away    *client.ConnectionError
		broken  *client.StreamError
		partial *client.PartialForkError
		command *client.CommandError
		build   *client.BuildError
	)
	switch {
	case errors.As(err, &wrong):
		return map[string]any{"class": "InvalidArgumentError", "field": canonical(wrong.Field)}
	case errors.As(err, &away):
		happened := "no"
		if away.Sent {
			happened = "unknown"
		}
		return map[string]any{"class": "ConnectionFailedError", "happened": happened}
	case errors.As(err, &broken):
		return map[string]any{"class": "StreamBrokenError"}
	case errors.As(err, &partial):
		return map[string]any{"class": "PartialForkError", "failed": partial.Failed,
			"sandboxes": sandboxObjects(partial.Sandboxes)}
	case errors.As(err, &command):
		return map[string]any{"class": "CommandFailed"}
	case errors.As(err, &build):
		return map[string]any{"class": "BuildFailed", "status": build.Err.Status, "step": build.Step, "output": build.Output}
	case errors.Is(err, client.ErrStdinClosed):
		return map[string]any{"class": "InputClosedError"}
	case errors.As(err, &answer):
		fields := map[string]any{"code": answer.Code, "field": answer.Field, "status": answer.Status}
		if errors.Is(err, client.ErrorCode(answer.Code)) {
			fields["class"] = className(answer.Code)
		}
		return fields
	}
	return map[string]any{"class": fmt.Sprintf("%T", err)}
}

// className returns the name of the exception class that other SDKs have for an error code.
func className(code string) string {
	name := ""
	for part := range strings.SplitSeq(code, "_") {
		name += strings.ToUpper(part[:1]) + part[1:]
	}
	return name + "Error"
}
