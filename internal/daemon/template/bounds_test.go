package template

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
)

// variables() returns the arguments of a step that sets n variables.
func variables(prefix string, n int) Step {
	s := Step{Type: typeEnv}
	for i := range n {
		s.Args = append(s.Args, fmt.Sprint(prefix, i), "")
	}
	return s
}

// The memory that a template's steps need is checked against the bounds before it is allocated.
func TestSmallTemplatesTakeLittleMemory(t *testing.T) {
	files := make([]plan.File, 2000)
	for i := range files {
		files[i] = plan.File{Path: fmt.Sprintf("h/f%06d", i), Kind: plan.KindFile}
	}
	env := func(args ...string) Step { return Step{Type: typeEnv, Args: args} }
	long := env("x", strings.Repeat("y", 10<<10))
	run := Step{Type: typeRun, Args: []string{"x"}}
	for name, c := range map[string]struct {
		steps []Step
		base  dockerfile.Config
		want  string // expected error; empty: none
	}{
		"variables of a step": {steps: []Step{variables("A", 3000)}, want: "the variables take more than 131072 bytes"},
		"variables of steps":  {steps: []Step{variables("A", 1000), variables("B", 1000)}, want: "the variables take"},
		"a value":             {steps: []Step{long, env("z", "$x$x$x$x")}, want: "the value has 40960 bytes"},
		"values of many steps": {
			steps: append([]Step{long}, slices.Repeat([]Step{env("z", "$x$x$x")}, 400)...),
			want:  "8 MiB in all",
		},
		"values of a step": {
			steps: []Step{long, env(slices.Repeat([]string{"z", "$x$x$x"}, 400)...)},
			want:  "8 MiB in all",
		},
		"the environment of each command": {
			steps: append([]Step{variables("A", 1900)}, slices.Repeat([]Step{run}, 480)...),
		},
		"values beside many variables": {
			steps: []Step{variables("A", 1900), env(slices.Repeat([]string{"z", "$A1"}, 10000)...)},
		},
		"files of sources": {
			steps: slices.Repeat([]Step{{Type: typeCopy, Args: []string{".", "/d/"}, FilesHash: "h"}}, 400),
			want:  "want at most 137072 files in all",
		},
		"single files": {
			steps: slices.Repeat([]Step{{Type: typeCopy, Args: []string{"f000001", "/d/"}, FilesHash: "h"}}, 400),
		},
		"directories": {
			steps: slices.Repeat([]Step{{Type: typeWorkdir, Args: []string{strings.Repeat("d", 100)}}}, 400),
			want:  "want at most 4096",
		},
		"a directory": {steps: []Step{long, {Type: typeWorkdir, Args: []string{"/$x"}}}, want: "want at most 4096"},
		"a user":      {steps: []Step{long, {Type: typeUser, Args: []string{"$x"}}}, want: "want at most 4096"},
		"a target": {
			steps: []Step{long, {Type: typeCopy, Args: []string{".", "$x"}, FilesHash: "h"}},
			want:  "want at most 4096",
		},
		"the environment of the base": {
			base: dockerfile.Config{Env: map[string]string{"A": strings.Repeat("x", 40<<10)}},
			want: "the environment of the base: A: the value",
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := &reader{from: Plan{Steps: c.steps}, files: files}
		_, err := r.read(t.Context(), "made", plan.Base{Snapshot: "base", Digest: "d"}, c.base)
		runtime.ReadMemStats(&after)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %.300v, want %q", name, err, c.want)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 128<<20 {
			t.Errorf("%s: it took %d MiB", name, n>>20)
		}
	}
}

// Reading a template's archives stops when the build is replaced.
func TestReadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, s := range []Step{{Type: typeRun, Args: []string{"x"}}, {Type: typeEnv, Args: []string{"A", "$B"}}} {
		r := &reader{from: Plan{Steps: []Step{s}}}
		_, err := r.read(ctx, "made", plan.Base{Snapshot: "base", Digest: "d"}, dockerfile.Config{})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", s.Type, err)
		}
	}
}
