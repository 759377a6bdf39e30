package integration_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// TestHooks runs hooks in real VMs. After a crash of the daemon, it also runs the hooks that the
// child of a branch has inherited. One hook crashes its guest.
func TestHooks(t *testing.T) {
	d := loadDistribution(t).start(t)
	box := d.fork(t, 1)[0]
	note := func(word string) *client.Hook {
		return &client.Hook{Args: client.Shell("echo " + word + " $FORKD_HOOK >>/root/hooks"), TimeoutSecs: 60}
	}
	hooks := client.Hooks{BeforeBranch: note("a"), AfterFork: note("b"), BeforeSuspend: note("c"), AfterResume: note("d")}
	if _, err := d.SetHooks(d.ctx(t, quietLimit), box.ID, hooks); err != nil {
		t.Fatal(err)
	}
	wants := func(id string, want ...string) {
		t.Helper()
		if got := strings.TrimSpace(d.sh(t, id, "cat /root/hooks")); got != strings.Join(want, "\n") {
			t.Errorf("%s has run %q, want %q", id, got, want)
		}
	}
	if _, err := d.Suspend(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	d.crash(t)
	d.launch(t)
	if _, err := d.Resume(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	const suspended, resumed, branched = "c before_suspend", "d after_resume", "a before_branch"
	wants(box.ID, suspended, resumed)
	if _, err := d.Branch(d.ctx(t, bakeLimit), box.ID, client.BranchRequest{Tag: "hooked"}); err != nil {
		t.Fatal(err)
	}
	f, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "hooked", N: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, child := range f.Sandboxes {
		wants(child.ID, suspended, resumed, branched, "b after_fork")
	}
	wants(box.ID, suspended, resumed, branched)

	crash := &client.Hooks{AfterFork: &client.Hook{Args: client.Shell("echo c >/proc/sysrq-trigger"), TimeoutSecs: 300}}
	var e *client.Error
	if _, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "hooked", N: 1,
		Hooks: crash}); !errors.As(err, &e) || e.Code != "hook_failed" {
		t.Errorf("a hook that crashes its guest: %v", err)
	}
	d.kill(t, append(f.Sandboxes, box)...)
	d.removeBranches(t)
}
