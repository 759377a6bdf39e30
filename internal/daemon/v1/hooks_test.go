package v1_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// hooked forks a sandbox that has the given hooks, each as a command for a shell.
func hooked(t *testing.T, r *apirig.Rig, onFailure string, commands map[string]string) (string, error) {
	t.Helper()
	if len(r.Store.List()) == 0 {
		if _, err := r.Bake(t.Context(), r.Parent); err != nil {
			t.Fatal(err)
		}
	}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1, Hooks: hooksOf(onFailure, commands)})
	if err != nil {
		return "", err
	}
	return f.Sandboxes[0].ID, nil
}

func hooksOf(onFailure string, commands map[string]string) *client.Hooks {
	one := func(name string) *client.Hook {
		if commands[name] == "" {
			return nil
		}
		return &client.Hook{Args: client.Shell(commands[name]), OnFailure: onFailure}
	}
	return &client.Hooks{BeforeBranch: one("before_branch"), AfterFork: one("after_fork"),
		BeforeSuspend: one("before_suspend"), AfterResume: one("after_resume")}
}

// everywhere returns a command for each hook.
func everywhere(command string) map[string]string {
	return map[string]string{"before_branch": command, "after_fork": command, "before_suspend": command,
		"after_resume": command}
}

// wantHookError checks that an operation was aborted by a hook, and that the error quotes a text.
func wantHookError(t *testing.T, what string, err error, quoted string) {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) || e.Code != "hook_failed" || !strings.Contains(e.Error(), quoted) {
		t.Errorf("%s: %v, want hook_failed with %q", what, err, quoted)
	}
}

// TestHooksRun checks which hooks each operation runs. docs/hooks.md has the same table.
func TestHooksRun(t *testing.T) {
	r := start(t, apirig.Options{})
	log := filepath.Join(t.TempDir(), "log") // the faked guests use the host's file system
	ctx := t.Context()
	var id string
	var err error
	ran := func(what string, want ...string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		text, _ := os.ReadFile(log)
		got := strings.Fields(string(text))
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: ran %q, want %q", what, got, want)
		}
		os.Remove(log)
	}
	id, err = hooked(t, r, "", everywhere("echo $FORKD_HOOK >>"+log))
	ran("fork", "after_fork")
	got, err := r.Hooks(ctx, id)
	if err != nil || got.AfterFork.TimeoutSecs != 30 || got.AfterFork.OnFailure != "abort" {
		t.Errorf("%+v, %v", got.AfterFork, err)
	}
	_, err = r.Branch(ctx, id, client.BranchRequest{Tag: "b"})
	ran("branch", "before_branch")
	f, err := r.Fork(ctx, client.ForkRequest{SnapshotTag: "b", N: 2})
	ran("fork of the branch", "after_fork", "after_fork")
	child := f.Sandboxes[0].ID
	_, err = r.Fork(ctx, client.ForkRequest{SourceID: id, N: 1})
	ran("fork of the sandbox", "after_fork", "before_branch")
	_, err = r.Fork(ctx, client.ForkRequest{SnapshotTag: "b", N: 1, Hooks: &client.Hooks{}})
	ran("fork without hooks")
	var o tried
	_, err = o.try(ctx, r.Client, id, client.TryRequest{N: 2, Args: []string{"true"}})
	ran("try", "after_fork", "after_fork", "before_branch")
	_, err = o.try(ctx, r.Client, id, client.TryRequest{N: 1, Args: []string{"true"}, Promote: true})
	ran("try with a promotion", "after_fork", "before_branch", "before_branch")
	_, err = r.Promote(ctx, id, client.PromoteRequest{From: child})
	ran("promote", "before_branch")
	_, err = r.Rollback(ctx, id, "b")
	ran("rollback")
	_, err = r.Pause(ctx, id)
	ran("pause")
	_, err = r.Branch(ctx, id, client.BranchRequest{})
	ran("branch of a paused sandbox")
	_, err = r.Resume(ctx, id)
	ran("resume of a paused sandbox")
	_, err = r.Suspend(ctx, id)
	ran("suspend", "before_suspend")
	_, err = r.Resume(ctx, id)
	ran("resume", "after_resume")
	_, err = r.SetHooks(ctx, id, client.Hooks{})
	ran("set hooks")
	_, err = r.Branch(ctx, id, client.BranchRequest{})
	ran("branch without hooks")
}

func TestAFailedHookAborts(t *testing.T) {
	r := start(t, apirig.Options{})
	ctx := t.Context()
	const fails = "echo no space >&2; exit 3"
	if _, err := hooked(t, r, "abort", map[string]string{"after_fork": fails}); err == nil {
		t.Error("the fork succeeded")
	} else {
		wantHookError(t, "fork", err, "exit status 3; its output ends with:\nno space")
	}
	id, err := hooked(t, r, "", map[string]string{"before_branch": fails, "before_suspend": fails})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Branch(ctx, id, client.BranchRequest{Tag: "b"})
	wantHookError(t, "branch", err, "before_branch")
	_, err = r.Fork(ctx, client.ForkRequest{SourceID: id, N: 1})
	wantHookError(t, "fork of the sandbox", err, "before_branch")
	_, err = r.Suspend(ctx, id)
	wantHookError(t, "suspend", err, "before_suspend")
	if s, err := r.Sandbox(ctx, id); err != nil || s.State != "running" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := r.SetHooks(ctx, id, *hooksOf("abort", map[string]string{"after_resume": fails})); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Suspend(ctx, id); err != nil {
		t.Fatal(err)
	}
	_, err = r.Resume(ctx, id)
	wantHookError(t, "resume", err, "after_resume")
	if s, err := r.Sandbox(ctx, id); err != nil || s.State != "suspended" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := r.SetHooks(ctx, id, client.Hooks{}); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Resume(ctx, id); err != nil || s.State != "running" {
		t.Errorf("resume without hooks: %+v, %v", s, err)
	}
	wantLeft(t, r, 1, id) // the snapshot of its suspended state
}

func TestAFailedHookContinues(t *testing.T) {
	r := start(t, apirig.Options{})
	ctx := t.Context()
	id, err := hooked(t, r, "continue", everywhere("echo secret; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = r.Branch(ctx, id, client.BranchRequest{}); err == nil {
		if _, err = r.Suspend(ctx, id); err == nil {
			_, err = r.Resume(ctx, id)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	var failed []string
	if err := r.Kill(ctx, id); err != nil {
		t.Fatal(err)
	}
	all := client.EventsRequest{After: "none", Sandboxes: []string{id}}
	for _, e := range follow(t, r.Client, all, "sandbox.deleted") {
		if e.Type == "sandbox.hook_failed" && e.Detail == "exit status 3" {
			failed = append(failed, e.Reason)
		}
	}
	if want := []string{"after_fork", "before_branch", "before_suspend", "after_resume"}; !slices.Equal(failed, want) {
		t.Errorf("events of %q, want %q", failed, want)
	}
}

// TestHostileHooks runs a hook that does not end, a hook that floods its output, and a hook in a
// guest without an agent.
func TestHostileHooks(t *testing.T) {
	r := start(t, apirig.Options{})
	ctx := t.Context()
	pid := filepath.Join(t.TempDir(), "pid")
	for name, c := range map[string]struct{ command, want string }{
		"hangs": {"echo $$ >" + pid + "; echo begun; sleep 100",
			"not done after 1s; its output ends with:\nbegun"},
		"floods":             {"yes", "more than 1 MiB"},
		"is killed":          {"kill -9 $$", "signal: killed"},
		"quotes no controls": {`printf '\033[2Jhi\n'; exit 1`, "ends with:\n"},
	} {
		id, err := hooked(t, r, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		hooks := client.Hooks{BeforeBranch: &client.Hook{Args: client.Shell(c.command), TimeoutSecs: 1}}
		if _, err := r.SetHooks(ctx, id, hooks); err != nil {
			t.Fatal(err)
		}
		_, err = r.Branch(ctx, id, client.BranchRequest{})
		if name == "floods" && err != nil && strings.Contains(err.Error(), "not done after 1s") {
			continue // on a slow host the time limit is reached first
		}
		wantHookError(t, name, err, c.want)
		if err != nil && strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: the error has control characters: %q", name, err)
		}
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	process := filepath.Join("/proc", strings.TrimSpace(string(text)))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(process); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the hook that hangs still runs")
		}
	}
}

func TestAHookOfAMuteGuest(t *testing.T) {
	guest := mute{make(chan struct{}, 10)}
	r := start(t, apirig.Options{Guest: guest})
	ctx := t.Context()
	id, err := hooked(t, r, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	hooks := client.Hooks{BeforeBranch: &client.Hook{Args: []string{"true"}, TimeoutSecs: 300}}
	if _, err := r.SetHooks(ctx, id, hooks); err != nil {
		t.Fatal(err)
	}
	branching, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() {
		_, err := r.Branch(branching, id, client.BranchRequest{})
		done <- err
	}()
	<-guest.dialed                              // the hook runs
	if _, err := r.Pause(ctx, id); err != nil { // the hook holds no lock
		t.Error(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled branch: %v", err)
	}
	if err := r.Kill(ctx, id); err != nil {
		t.Error(err)
	}
}

func TestWrongHooks(t *testing.T) {
	r := start(t, apirig.Options{})
	ctx := t.Context()
	id, err := hooked(t, r, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for field, hook := range map[string]client.Hook{
		"args: empty":                  {Args: []string{}},
		"args: \"a\\x00b\"":            {Args: []string{"a\x00b"}},
		"args: 65 arguments":           {Args: slices.Repeat([]string{"a"}, 65)},
		"args: 9000 bytes":             {Args: []string{strings.Repeat("a", 9000)}},
		"timeout_secs: 301":            {Args: []string{"true"}, TimeoutSecs: 301},
		"timeout_secs: -1":             {Args: []string{"true"}, TimeoutSecs: -1},
		"on_failure: \"panic\": want ": {Args: []string{"true"}, OnFailure: "panic"},
	} {
		var e *client.Error
		_, err := r.SetHooks(ctx, id, client.Hooks{AfterResume: &hook})
		if !errors.As(err, &e) || e.Code != "invalid_field" || !strings.Contains(e.Error(), "after_resume."+field) {
			t.Errorf("%s: %v", field, err)
		}
		_, err = r.Fork(ctx, client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1, Hooks: &client.Hooks{AfterFork: &hook}})
		if !errors.As(err, &e) || e.Code != "invalid_field" || !strings.Contains(e.Error(), "hooks.after_fork."+field) {
			t.Errorf("fork with %s: %v", field, err)
		}
	}
	if h, err := r.Hooks(ctx, id); err != nil || h != (client.Hooks{}) {
		t.Errorf("%+v, %v", h, err)
	}
}
