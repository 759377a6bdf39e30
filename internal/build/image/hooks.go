package image

import (
	"fmt"

	"gopkg.in/yaml.v3"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// Hooks are the hooks of children.
type Hooks struct{ snapshot.Hooks }

// UnmarshalYAML reads a mapping from names to hooks and rejects unknown names. A hook is a command
// for /bin/sh -c, or a mapping.
func (h *Hooks) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: hooks: want fields, such as {before_branch: sync}", node.Line)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		hook, err := parseHook(value)
		if err != nil {
			return err
		}
		known := false
		h.Each(func(n string, field **snapshot.Hook) {
			if n == name.Value {
				*field, known = hook, true
			}
		})
		if !known {
			return fmt.Errorf("line %d: unknown field %q in hooks: it has before_branch, after_fork, before_suspend and "+
				"after_resume", name.Line, name.Value)
		}
	}
	h.Hooks = h.Filled()
	return nil
}

func parseHook(node *yaml.Node) (*snapshot.Hook, error) {
	if node.Kind == yaml.ScalarNode {
		return &snapshot.Hook{Args: []string{"/bin/sh", "-c", node.Value}}, nil
	}
	if node.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want a command, or fields such as {run: sync, timeout_secs: 10}", node.Line)
	}
	for i := 0; i < len(node.Content); i += 2 { // decoding a node does not reject unknown fields
		switch name := node.Content[i]; name.Value {
		case "run", "args", "timeout_secs", "on_failure":
		default:
			return nil, fmt.Errorf("line %d: unknown field %q in a hook: it has run or args, timeout_secs and on_failure",
				name.Line, name.Value)
		}
	}
	var fields struct {
		Run         string   `yaml:"run"`  // command for /bin/sh -c
		Args        []string `yaml:"args"` // command and arguments without a shell
		TimeoutSecs int      `yaml:"timeout_secs"`
		OnFailure   string   `yaml:"on_failure"`
	}
	if err := node.Decode(&fields); err != nil {
		return nil, err
	}
	if (fields.Run == "") == (len(fields.Args) == 0) {
		return nil, fmt.Errorf("line %d: a hook: want either run or args", node.Line)
	}
	if fields.Run != "" {
		fields.Args = []string{"/bin/sh", "-c", fields.Run}
	}
	return &snapshot.Hook{Args: fields.Args, TimeoutSecs: fields.TimeoutSecs, OnFailure: fields.OnFailure}, nil
}
