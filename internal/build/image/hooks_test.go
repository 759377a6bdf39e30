package image

import (
	"reflect"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
)

func TestHooksOfARecipe(t *testing.T) {
	const head = "name: x\nbase: debian:bookworm\nhooks:\n"
	r, err := ParseRecipe([]byte(head + "  before_branch: sync\n" +
		"  after_fork: {args: [a, b], timeout_secs: 5, on_failure: continue}\n  after_resume: {run: x}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := snapshot.Hooks{
		BeforeBranch: &snapshot.Hook{Args: []string{"/bin/sh", "-c", "sync"}, TimeoutSecs: 30, OnFailure: "abort"},
		AfterFork:    &snapshot.Hook{Args: []string{"a", "b"}, TimeoutSecs: 5, OnFailure: "continue"},
		AfterResume:  &snapshot.Hook{Args: []string{"/bin/sh", "-c", "x"}, TimeoutSecs: 30, OnFailure: "abort"},
	}
	if got := r.Hooks.Hooks; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	for text, reason := range map[string]string{
		"  before_fork: sync\n":                         `line 4: unknown field "before_fork" in hooks`,
		"  after_fork: {run: a, env: b}\n":              `line 4: unknown field "env" in a hook`,
		"  after_fork: {run: a, args: [b]}\n":           "want either run or args",
		"  after_fork: {timeout_secs: 3}\n":             "want either run or args",
		"  after_fork: [a]\n":                           "line 4: want a command",
		"  after_fork: {run: a, timeout_secs: 1000}\n":  "hooks: after_fork.timeout_secs: 1000: want 1 to 300",
		"  after_fork: {run: a, on_failure: explode}\n": "hooks: after_fork.on_failure:",
	} {
		if _, err := ParseRecipe([]byte(head + text)); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want %q", text, err, reason)
		}
	}
}
