package sandbox

import (
	"context"
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/proto/vm"
)

// as returns a context for requests of the owner with this name.
func as(t *testing.T, name string) context.Context {
	return owner.In(t.Context(), owner.Owner{Name: name})
}

func asAdmin(t *testing.T) context.Context { return owner.In(t.Context(), owner.Owner{Admin: true}) }

// The number of sandboxes that an owner may have at a time is limited. Requests of every kind are
// refused above this limit, even after a restart of the daemon. Other owners are not affected.
func TestOwnersHaveTheirNumberOfSandboxes(t *testing.T) {
	w := newWorld(t, 0)
	if _, err := w.Bake(t.Context(), w.bake); err != nil {
		t.Fatal(err)
	}
	ci, other := owner.In(t.Context(), owner.Owner{Name: "token:ci", Most: 3}), as(t, "token:other")
	fork := func(ctx context.Context, n int) (ForkResult, error) { return w.Fork(ctx, ForkRequest{Tag: "p", N: n}) }
	if _, err := fork(other, 4); err != nil {
		t.Fatal(err)
	}
	_, err := fork(ci, 4)
	wantRefused(t, admit.CodeOwnSandboxes, err)
	var group sync.WaitGroup
	results, forked := make([]error, 6), make([]ForkResult, 6)
	for i := range results {
		group.Go(func() { forked[i], results[i] = fork(ci, 1) })
	}
	group.Wait()
	var mine []string
	for i, err := range results {
		if err == nil {
			mine = append(mine, forked[i].Sandboxes[0].ID)
		} else {
			wantRefused(t, admit.CodeOwnSandboxes, err)
		}
	}
	if len(mine) == 0 || len(mine) > 3 {
		t.Fatalf("%d sandboxes at once, of 3", len(mine))
	}
	if _, err := fork(ci, 3-len(mine)+1); err == nil {
		t.Error("one more than the maximum")
	}
	if n := 3 - len(mine); n > 0 { // the refusal may have counted a sandbox that was about to end
		r, err := fork(ci, n)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range r.Sandboxes {
			mine = append(mine, i.ID)
		}
	}
	if _, err := w.Suspend(t.Context(), mine[0]); err != nil {
		t.Fatal(err)
	}
	before := w.vmms.Spawned
	_, _, err = w.ForkSandbox(ci, mine[1], BranchRequest{}, ForkRequest{N: 1})
	wantRefused(t, admit.CodeOwnSandboxes, err)
	if w.vmms.Spawned != before {
		t.Error("VMs were started for a fork that was refused")
	}

	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	_, err = fork(ci, 1)
	wantRefused(t, admit.CodeOwnSandboxes, err)
	if err := w.Kill(mine[1]); err != nil {
		t.Fatal(err)
	}
	if r, err := fork(ci, 1); err != nil || r.Sandboxes[0].Owner != "token:ci" {
		t.Errorf("after one was killed: %+v, %v", r, err)
	}
	w.KillAll()
	w.stop()
}

// An exited sandbox that can be resumed counts. If it did not count, an owner could have any number
// of sandboxes: the owner would end one sandbox, start another, and resume the first.
func TestWhatCanBeResumedCounts(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	ci := owner.In(t.Context(), owner.Owner{Name: "token:ci", Most: 1})
	fork := func() (string, error) {
		r, err := w.Fork(ci, ForkRequest{Tag: "p", N: 1})
		if err != nil {
			return "", err
		}
		return r.Sandboxes[0].ID, nil
	}
	end := func(id string) {
		for _, v := range w.vmms.All() {
			v.End(vm.Exit{Reason: vm.ExitReset})
		}
		w.awaitExit(t, id)
	}
	gone, err := fork() // a sandbox without a suspended state, which will exit
	if err != nil {
		t.Fatal(err)
	}
	end(gone)
	id, err := fork()
	if err != nil {
		t.Fatalf("beside one that cannot come back: %v", err)
	}
	if _, err := w.Suspend(ci, id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(ci, id); err != nil {
		t.Fatal(err)
	}
	end(id)
	_, err = fork()
	wantRefused(t, admit.CodeOwnSandboxes, err)
	if i, err := w.Resume(ci, id); err != nil || i.State != Running || i.Resumable {
		t.Errorf("%+v, %v", i, err)
	}
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	if _, err := fork(); err != nil {
		t.Errorf("after it was deleted: %v", err)
	}
	w.KillAll()
	w.stop()
}
