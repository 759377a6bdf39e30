// Package contract defines the behaviour that all SDKs of forkd share. README.md describes its data
// files, which are the operations and scenarios. The runners of the other SDKs also read these
// files. The runner of the Go client is in this package.
//
// It does not start a daemon. The tests that use the package start one.
package contract

import (
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// FS holds the operations and scenarios.
//
//go:embed operations.yaml scenarios
var FS embed.FS

// Operation is an operation that every SDK supports.
type Operation struct {
	Op      string   `yaml:"op"`
	Object  string   `yaml:"object"`
	Args    []string `yaml:"args"`
	Result  string   `yaml:"result"`
	Comment string   `yaml:"comment"`
}

// Scenario is a sequence of steps.
type Scenario struct {
	Name    string `yaml:"name"`
	Needs   string `yaml:"needs"` // kind of daemon: "fake", "vm", or empty for either
	Steps   []Step `yaml:"steps"`
	Finally []Step `yaml:"finally"`
}

// Step is one call and its expected result.
type Step struct {
	Do     string          `yaml:"do"`
	Of     string          `yaml:"of"`
	With   map[string]any  `yaml:"with"`
	Save   string          `yaml:"save"`
	Expect map[string]any  `yaml:"expect"`
	Error  *map[string]any `yaml:"error"`
}

// own lists the operations that each runner implements itself, with their arguments.
var own = map[string][]string{
	"rig.faults": {"clear", "requests", "fail_children", "restart"}, "rig.state": nil, "sleep": {"seconds"},
	"number": {"text"}, "directory": {"files"},
}

// Operations returns all operations.
func Operations() ([]Operation, error) {
	var list []Operation
	return list, read("operations.yaml", &list)
}

// Scenarios returns all scenarios. Unknown operations, arguments and keys are errors.
func Scenarios() ([]Scenario, error) {
	known := maps.Clone(own)
	operations, err := Operations()
	if err != nil {
		return nil, err
	}
	for _, o := range operations {
		known[o.Op] = o.Args
	}
	files, err := fs.Glob(FS, "scenarios/*.yaml")
	if err != nil {
		return nil, err
	}
	var all []Scenario
	names := map[string]bool{}
	for _, file := range files {
		var list []Scenario
		if err := read(file, &list); err != nil {
			return nil, err
		}
		for _, s := range list {
			if err := s.check(known); err != nil {
				return nil, fmt.Errorf("%s: %q: %w", path.Base(file), s.Name, err)
			}
			if names[s.Name] {
				return nil, fmt.Errorf("%s: a second scenario with the name %q", path.Base(file), s.Name)
			}
			names[s.Name] = true
		}
		all = append(all, list...)
	}
	return all, nil
}

func read(file string, into any) error {
	f, err := FS.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	dec := yaml.NewDecoder(f)
	dec.KnownFields(true)
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func (s *Scenario) check(known map[string][]string) error {
	if s.Name == "" || len(s.Steps) == 0 {
		return errors.New("want a name and steps")
	}
	if !slices.Contains([]string{"", "fake", "vm"}, s.Needs) {
		return fmt.Errorf("needs: %q: want fake or vm", s.Needs)
	}
	for _, step := range slices.Concat(s.Steps, s.Finally) {
		args, ok := known[step.Do]
		if !ok {
			return fmt.Errorf("there is no operation %q", step.Do)
		}
		for name := range step.With {
			if !slices.Contains(args, name) {
				return fmt.Errorf("%s has no argument %q", step.Do, name)
			}
		}
	}
	return nil
}

// variable matches a reference to a part of a saved result.
var variable = regexp.MustCompile(`\$\{([^}]*)\}`)

// filled returns a value of a step with variables replaced and encoded bytes decoded.
func filled(v any, saved map[string]any) (any, error) {
	switch v := v.(type) {
	case string:
		if m := variable.FindStringSubmatch(v); m != nil && m[0] == v {
			return at(saved, m[1]), nil
		}
		return variable.ReplaceAllStringFunc(v, func(s string) string {
			return fmt.Sprint(at(saved, s[2:len(s)-1]))
		}), nil
	case map[string]any:
		if text, ok := v["base64"].(string); ok && len(v) == 1 {
			return base64.StdEncoding.DecodeString(text)
		}
		out := map[string]any{}
		for key, value := range v {
			name, err := filled(key, saved)
			if err != nil {
				return nil, err
			}
			if out[fmt.Sprint(name)], err = filled(value, saved); err != nil {
				return nil, err
			}
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = filled(v[i], saved); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

// at(v, path) returns the value at a path in v, or nil. A key may contain dots.
func at(v any, path string) any {
	if path == "." || path == "" {
		return v
	}
	switch v := v.(type) {
	case *Object:
		return at(v.Fields, path)
	case map[string]any:
		if value, ok := v[path]; ok {
			return value
		}
		for i := range len(path) { // shorter keys are tried first
			if value, ok := v[path[:i]]; path[i] == '.' && ok {
				return at(value, path[i+1:])
			}
		}
	case []any:
		first, rest, _ := strings.Cut(path, ".")
		n, err := strconv.Atoi(first)
		if n < 0 {
			n += len(v)
		}
		if err == nil && n >= 0 && n < len(v) {
			return at(v[n], rest)
		}
	}
	return nil
}

// holds(want, got) returns an error if the value got does not match the expected value want.
func holds(want, got any) error {
	if o, ok := got.(*Object); ok {
		got = o.Fields
	}
	if m, ok := want.(map[string]any); ok && len(m) == 1 {
		for key, arg := range m {
			if ok, known := test(key, arg, got); known {
				if !ok {
					return fmt.Errorf("got %s, want %s: %v", shown(got), key, arg)
				}
				return nil
			}
		}
	}
	if equal(want, got) {
		return nil
	}
	return fmt.Errorf("got %s, want %s", shown(got), shown(want))
}

// test evaluates one of the tests that README.md lists.
func test(key string, arg, got any) (ok, known bool) {
	switch key {
	case "matches":
		pattern, err := regexp.Compile(fmt.Sprint(arg))
		return err == nil && got != nil && pattern.MatchString(fmt.Sprint(got)), true
	case "type":
		return typeOf(got) == arg, true
	case "length":
		v := reflect.ValueOf(got)
		return got != nil && slices.Contains([]reflect.Kind{reflect.Slice, reflect.String, reflect.Map}, v.Kind()) &&
			equal(arg, v.Len()), true
	case "contains":
		if list, ok := got.([]any); ok {
			return slices.ContainsFunc(list, func(v any) bool { return holds(arg, v) == nil }), true
		}
		return strings.Contains(fmt.Sprint(got), fmt.Sprint(arg)), true
	case "not":
		return holds(arg, got) != nil, true
	}
	return false, false
}

func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "boolean"
	case []byte:
		return "bytes"
	case []any:
		return "list"
	case map[string]any, *Object:
		return "object"
	default:
		if _, ok := number(v); ok {
			return "number"
		}
		return fmt.Sprintf("%T", v)
	}
}

// equal reports whether two values are equal. Numbers are compared by value, whatever their type.
func equal(a, b any) bool {
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, equal)
	case []byte:
		b, ok := b.([]byte)
		return ok && string(a) == string(b)
	}
	return reflect.DeepEqual(a, b)
}

func number(v any) (float64, bool) {
	switch v := reflect.ValueOf(v); v.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64:
		return float64(v.Int()), true
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		return float64(v.Uint()), true
	case reflect.Float64:
		return v.Float(), true
	}
	return 0, false
}

func shown(v any) string { return fmt.Sprintf("%.500s", fmt.Sprintf("%#v", v)) }
