package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

// waitingCtx is a context. When a goroutine asks for its Done channel, it calls the function in its
// field waits.
type waitingCtx struct {
	context.Context
	waits func()
}

func (c waitingCtx) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// While a fork waits until a snapshot is complete, another snapshot may take the tag. If the client
// may not see the other snapshot, the fork is refused, even if the client could see the first
// snapshot.
func TestAForkMayNotUseWhatTookTheTag(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	others := w.fork(t, "p")
	w.bake.Tag = "q"
	mustBake(t, w)
	complete := w.unwatched.Add("q")
	waits := make(chan struct{})
	ofA := owner.In(t.Context(), owner.Owner{Name: "token:a", Prefix: "team-a/"})
	ctx := waitingCtx{ofA, sync.OnceFunc(func() { close(waits) })}
	ended := make(chan error, 1)
	go func() {
		_, err := w.Fork(ctx, ForkRequest{Tag: "q", N: 1})
		ended <- err
	}()
	<-waits
	if err := w.DeleteSnapshot("q", store.DeleteSingle); err != nil {
		t.Fatal(err)
	}
	w.branch(t, others, "q", vm.BranchDiff)
	complete()
	var none *store.NotFoundError
	if err := <-ended; !errors.As(err, &none) {
		t.Errorf("a fork of another team's branch: %v, want that it is not found", err)
	}
	w.KillAll()
}

// A client may roll its sandbox back to the snapshot that the sandbox was forked from, even if the
// client cannot see that snapshot. If another snapshot has taken the tag, the rollback must not
// read the other snapshot. The time for reading would tell the client the size of that snapshot.
func TestARollbackMayNotReadWhatTookTheTag(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	others := w.fork(t, "p")
	w.branch(t, others, "team-b.x", vm.BranchDiff)
	made, err := w.Fork(t.Context(), ForkRequest{Tag: "team-b.x", N: 1, Labels: map[string]string{"team-a/x": ""}})
	if err != nil {
		t.Fatal(err)
	}
	id := made.Sandboxes[0].ID
	a := owner.In(t.Context(), owner.Owner{Name: "token:a", Prefix: "team-a/"})
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Rollback(a, id, "team-b.x", unique.AsBefore); err != nil {
		t.Errorf("the snapshot that it was forked from: %v", err)
	}
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := w.DeleteSnapshot("team-b.x", store.DeleteForce); err != nil {
		t.Fatal(err)
	}
	w.branch(t, others, "team-b.x", vm.BranchDiff)
	if err := w.Kill(others); err != nil { // Cool below works only if no sandbox uses the snapshot
		t.Fatal(err)
	}
	st := w.Snapshots()
	st.Quiesce()
	st.Cool("team-b.x")
	other, err := st.Detail("team-b.x")
	if err != nil {
		t.Fatal(err)
	}
	var none *store.NotFoundError
	if _, err := w.Rollback(a, id, "team-b.x", unique.AsBefore); !errors.As(err, &none) {
		t.Errorf("another snapshot with the tag: %v, want that it is not found", err)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "ram", other.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its memory was read: %v", err)
	}
	w.KillAll()
}

// A client waits for a sandbox's lock. If the sandbox belongs to another team when the wait ends,
// the client is refused.
func TestReachIsAskedAgain(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{Labels: map[string]string{"team-a/x": "", "team-b/x": ""}})
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := owner.In(t.Context(), owner.Owner{Name: "token:a", Prefix: "team-a/"})
	if err := w.Reach(a, id); err != nil {
		t.Fatal(err)
	}
	paused := make(chan error)
	go func() { _, err := w.Pause(a, id); paused <- err }()
	if err := s.updateAll(func(r *ledger.Record) { r.Labels = map[string]string{"team-b/x": ""} }); err != nil {
		t.Fatal(err)
	}
	unlock()
	var missing *NotFoundError
	if err := <-paused; !errors.As(err, &missing) {
		t.Errorf("pause by the team that has lost it: %v", err)
	}
	if _, err := w.Pause(owner.In(t.Context(), owner.Owner{Name: "token:b", Prefix: "team-b/"}), id); err != nil {
		t.Errorf("pause by the other: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}

// MayUse looks only at the snapshot that it checks, because lists of sandboxes call it for each
// entry.
func TestMayUseLooksAtOneSnapshot(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	b := owner.In(t.Context(), owner.Owner{Name: "token:b", Prefix: "team-b/"})
	cost := func(tag string) float64 {
		return testing.AllocsPerRun(100, func() {
			if w.MayUse(b, tag) == nil {
				t.Errorf("%s is another team's", tag)
			}
		})
	}
	w.branch(t, id, "first", vm.BranchDiff)
	few := cost("first")
	for i := range 40 {
		w.branch(t, id, fmt.Sprint("b", i), vm.BranchDiff)
	}
	if many := cost("b39"); many > few {
		t.Errorf("%v allocations with 40 more snapshots, %v without", many, few)
	}
}
