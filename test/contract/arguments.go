package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/forkd/forkd/client"
)

// arguments holds the arguments of a step, by their names in scenarios.
type arguments map[string]any

// wireNames maps arguments to their names in the API, where the names differ.
func wireNames() map[string]string {
	return map[string]string{
		"snapshot": "snapshot_tag", "ttl": "ttl_secs", "idle_timeout": "idle_timeout_secs", "timeout": "timeout_secs",
		"cmd":     "args",
		"context": "context_id", "old": "from", "new": "to",
	}
}

// canonical returns the name in scenarios for an argument of the API.
func canonical(wire string) string {
	for name, other := range wireNames() {
		if other == wire && name != "new" { // the argument "new" is also called "to" in the API
			return name
		}
	}
	return wire
}

// into(request) decodes the arguments into request, a message of the client.
func (a arguments) into(request any) error {
	names, fields := wireNames(), map[string]any{}
	for name, value := range a {
		if other, ok := names[name]; ok {
			name = other
		}
		fields[name] = value
	}
	p, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(p, request); err != nil {
		return fmt.Errorf("arguments of the scenario: %w", err)
	}
	return nil
}

// metricsOf returns the request for a history. Scenarios give durations before now, and the Go
// client needs times.
func metricsOf(a arguments) (req client.MetricsRequest, err error) {
	req.Step = a.text("step")
	for name, at := range map[string]*time.Time{"since": &req.Since, "until": &req.Until} {
		if text := a.text(name); text != "" {
			ago, err := time.ParseDuration(text)
			if err != nil {
				return req, fmt.Errorf("arguments of the scenario: %w", err)
			}
			*at = time.Now().Add(-ago)
		}
	}
	return req, nil
}

// command returns the request for a command. The argument stdin is text or bytes, or true to keep
// the input open.
func (a arguments) command() (req client.ExecRequest, err error) {
	rest := arguments{}
	for name, value := range a {
		switch name {
		case "stdin":
			if open, ok := value.(bool); ok {
				req.OpenStdin = open
			} else {
				req.Stdin = data(value)
			}
		case "cmd":
			if line, ok := value.(string); ok {
				value = client.Shell(line)
			}
			rest[name] = value
		case "check", "cols", "rows":
		default:
			rest[name] = value
		}
	}
	return req, rest.into(&req)
}

func (a arguments) text(name string) string {
	if v, ok := a[name]; ok && v != nil {
		return fmt.Sprint(v)
	}
	return ""
}

func (a arguments) flag(name string) bool {
	v, _ := a[name].(bool)
	return v
}

func (a arguments) whole(name string, def int) int {
	if v, ok := number(a[name]); ok {
		return int(v)
	}
	return def
}

// data returns an argument, which is text or bytes, as bytes.
func data(v any) []byte {
	if text, ok := v.(string); ok {
		return []byte(text)
	}
	p, _ := v.([]byte)
	return p
}

// labels returns the argument "labels" in the form of a filter: NAME=VALUE for each label, or NAME for
// a label with any value.
func (a arguments) labels() (list []string) {
	m, _ := a["labels"].(map[string]any)
	for name, value := range m {
		if value == nil {
			list = append(list, name)
			continue
		}
		list = append(list, fmt.Sprintf("%s=%v", name, value))
	}
	return list
}

// fieldsOf converts a message of the API to the form that scenarios use.
func fieldsOf(v any) (map[string]any, error) {
	p, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	return fields, json.Unmarshal(p, &fields)
}

// fieldsAnd is like fieldsOf, but takes both results of a call: a value and an error.
func fieldsAnd(v any, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return fieldsOf(v)
}

func object(kind string, v, handle any) (*Object, error) {
	fields, err := fieldsOf(v)
	return &Object{Kind: kind, Fields: fields, handle: handle}, err
}

func sandboxObjects(list []client.Sandbox) []any {
	out := []any{}
	for _, s := range list {
		o, err := object("sandbox", s, s.ID)
		if err != nil {
			return nil // messages of the API can always be encoded
		}
		out = append(out, o)
	}
	return out
}

// found reports whether an object exists, according to the error of a call for the object. If the
// error has the given code (missing), the object does not exist. found returns any other error.
func found(err error, missing client.ErrorCode) (any, error) {
	if errors.Is(err, missing) {
		return false, nil
	}
	return err == nil, err
}

// feed queues the events that a callback receives. The queue has room for all events of a scenario.
type feed struct {
	events chan map[string]any
	ended  chan error
}

func newFeed() *feed {
	return &feed{events: make(chan map[string]any, 1000), ended: make(chan error, 1)}
}

// take is the callback. It queues an event.
func (f *feed) take(v any) error {
	fields, err := fieldsOf(v)
	if err == nil {
		f.events <- fields
	}
	return err
}

// next returns the first queued event that has the given fields.
func (f *feed) next(want arguments) (any, error) {
	timeout := time.After(20 * time.Second)
	var seen []any
	for {
		select {
		case e := <-f.events:
			matches := true
			for name, value := range want {
				matches = matches && equal(value, e[name])
			}
			if matches {
				return e, nil
			}
			seen = append(seen, e)
		case err := <-f.ended:
			return nil, err
		case <-timeout:
			return nil, fmt.Errorf("nothing like %v happened, but %v", want, seen)
		}
	}
}
