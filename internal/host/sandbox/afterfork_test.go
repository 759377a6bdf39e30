package sandbox

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/hook"
	"github.com/forkd/forkd/internal/host/vmfake"
)

// While the hooks of children run, the pool is refilled. The children's VMs no longer count as
// starting, so no memory is counted for their start.
func TestHooksHoldNeitherPoolNorMemory(t *testing.T) {
	w := newWorld(t, 1)
	defer w.stop()
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{})
	guest := sleeper{vmfake.Guest{All: w.vmms}, make(chan struct{}, 10)}
	w.Manager.cfg.Guest = func(string, string) Guest { return guest }
	endless := &snapshot.Hook{Args: []string{"sleep", "300"}, TimeoutSecs: 300, OnFailure: snapshot.HookAborts}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	done := make(chan error, 2)
	go func() {
		_, err := w.Fork(ctx, ForkRequest{Tag: "p", N: 3, Hooks: &snapshot.Hooks{AfterFork: endless}})
		done <- err
	}()
	for range 3 {
		<-guest.runs
	}
	if _, err := w.SetHooks(t.Context(), id, snapshot.Hooks{AfterResume: endless}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := w.Resume(ctx, id)
		done <- err
	}()
	<-guest.runs
	for w.pool.Count() == 0 { // if this does not end, the test times out
		time.Sleep(time.Millisecond)
	}
	if n := reflect.ValueOf(w.admitted).Elem().FieldByName("starting").Int(); n != 0 {
		t.Errorf("%d VMs count as starting while only hooks run", n)
	}
	leave()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a hook without its client: %v", err)
		}
	}
	w.KillAll()
	w.pool.Forget()
}

// If the hook of a child fails, the child is ended immediately. The hooks of the other children
// continue only if the fork permits failures.
func TestAFailedHookEndsItsChild(t *testing.T) {
	for _, partial := range []bool{true, false} {
		w := newWorld(t, 0)
		mustBake(t, w)
		runs := make(chan struct{}, 10)
		var guests atomic.Int32
		w.Manager.cfg.Guest = func(string, string) Guest {
			guest := vmfake.Guest{All: w.vmms}
			if guests.Add(1) == 2 {
				return guest // its commands fail
			}
			return sleeper{guest, runs}
		}
		aborts := &snapshot.Hook{Args: []string{"true"}, TimeoutSecs: 300, OnFailure: snapshot.HookAborts}
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := w.Fork(ctx, ForkRequest{Tag: "p", N: 3, AllowPartial: partial,
				Hooks: &snapshot.Hooks{AfterFork: aborts}})
			done <- err
		}()
		if partial {
			<-runs
			<-runs
			for w.vmms.Count() != 2 { // if this does not end, the test times out
				time.Sleep(time.Millisecond)
			}
			leave()
		}
		var failed *failure.ForkError
		if err := <-done; !errors.As(err, &failed) || failed.Failed != 3 || !errors.As(err, new(*hook.Error)) {
			t.Errorf("partial %v: %v", partial, err)
		}
		leave()
		w.checkClean(t)
		w.stop()
	}
}
