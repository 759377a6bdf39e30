package sandbox

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// waitingCtx tells when somebody waits for its end.
type waitingCtx struct {
	context.Context
	waits func()
}

func (c waitingCtx) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// A fork that waits for a branch to be complete is refused if the tag is then that of a snapshot which
// the client may not know of, although the one before was a parent, which is for all.
func TestAForkMayNotUseWhatTookTheTag(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	others := w.fork(t, "p")
	w.bake.Tag = "q"
	mustBake(t, w)
	complete := w.leaveUnwatched("q")
	waits := make(chan struct{})
	ctx := waitingCtx{OwnedBy(t.Context(), "token:a", 0, "team-a/"), sync.OnceFunc(func() { close(waits) })}
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
