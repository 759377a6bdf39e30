package contract

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
)

// directory makes a directory on this host for a build. The directory is removed after the
// scenario.
func (r *runner) directory(with arguments) (any, error) {
	dir, err := os.MkdirTemp("", "forkd-contract")
	if err != nil {
		return nil, err
	}
	// If the removal fails, the system removes the temporary directory later.
	r.undo = append(r.undo, func() { _ = os.RemoveAll(dir) })
	files, _ := with["files"].(map[string]any)
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		kind, _ := content.(map[string]any)
		switch link, isLink := kind["link"].(string); {
		case isLink:
			err = errors.Join(err, os.Symlink(link, path))
		case kind["pipe"] == true:
			err = errors.Join(err, unix.Mkfifo(path, 0o600))
		default:
			err = errors.Join(err, os.WriteFile(path, data(content), 0o644))
		}
		if err != nil {
			return nil, err
		}
	}
	return dir, nil
}

// build builds a snapshot from a directory, or from the text of a Dockerfile without a directory.
func build(r *runner, of *Object, with arguments) (any, error) {
	req := client.BuildRequest{Tag: with.text("tag"), Target: with.text("target"), NoCache: with.flag("no_cache"),
		Dockerfile: with.text("dockerfile_text"), Replace: true, Args: map[string]string{}, Secrets: map[string][]byte{}}
	if replace, ok := with["replace"].(bool); ok {
		req.Replace = replace
	}
	for name, value := range texts(with["build_args"]) {
		req.Args[name] = value
	}
	for id, value := range texts(with["secrets"]) {
		req.Secrets[id] = []byte(value)
	}
	files := &client.BuildContext{}
	if dir := with.text("context"); dir != "" {
		var err error
		if files, err = client.OpenBuildContext(dir, with.text("dockerfile")); err != nil {
			return nil, err
		}
		defer files.Close()
		req.Name, req.Dockerfile = files.Name, files.Dockerfile
	}
	steps, states, output := []any{}, []any{}, &strings.Builder{}
	result, err := r.on(of).Build(r.ctx, req, files.Pack, func(e client.BuildEvent) error {
		switch {
		case e.Plan != nil:
			for _, name := range e.Plan.Steps {
				steps, states = append(steps, name), append(states, nil)
			}
		case e.Step != nil:
			states[e.Step.Number] = e.Step.State
		case e.Output != nil:
			output.WriteString(e.Output.Line + "\n")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	made, err := r.on(of).Snapshot(r.ctx, result.Tag)
	if err != nil {
		return nil, err
	}
	snapshot, err := object("snapshot", made.Snapshot, result.Tag)
	return map[string]any{"snapshot": snapshot, "cached": result.Cached, "run": result.Run,
		"seen": map[string]any{"steps": steps, "states": states, "output": output.String()}}, err
}

func texts(v any) map[string]string {
	m, _ := v.(map[string]any)
	found := map[string]string{}
	for name, value := range m {
		found[name], _ = value.(string)
	}
	return found
}
