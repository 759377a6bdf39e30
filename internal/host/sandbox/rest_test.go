package sandbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// A suspension does not wait for a guest that never freezes its file system. It cancels the
// disk-only branch that waits for the guest, and the branches that are queued after it.
func TestSuspensionsCallOffBranchesThatWaitForTheGuest(t *testing.T) {
	for name, suspend := range map[string]func(context.Context, *world, string) error{
		"on request": func(ctx context.Context, w *world, id string) error {
			_, err := w.Suspend(ctx, id)
			return err
		},
		"by E2B's API": func(ctx context.Context, w *world, id string) error {
			_, err := w.SuspendWith(ctx, id, Suspension{Timeless: true})
			return err
		},
		"at its expiry": func(_ context.Context, w *world, id string) error {
			s, err := w.Get(id)
			if err == nil {
				err = s.updateAll(Expiry{At: time.Now(), Suspends: true}.Write)
			}
			w.setTimer(s)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { checkCallsOff(t, suspend) })
	}
}

func checkCallsOff(t *testing.T, suspend func(context.Context, *world, string) error) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	asked := make(chan struct{}, 100)
	w.vmms.Told = func(req agentproto.Request) error {
		if req.Op == agentproto.OpFreeze {
			asked <- struct{}{}
			select {} // simulates a guest in which root has replaced the agent
		}
		return nil
	}
	const queued = 8
	ended := make(chan error, queued)
	for i := range queued {
		go func() {
			_, err := w.Branch(t.Context(), id, BranchRequest{Tag: fmt.Sprint("d", i), Mode: vm.BranchDisk})
			ended <- err
		}()
	}
	<-asked
	time.Sleep(20 * time.Millisecond) // time for the other branches to enter the queue
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := suspend(ctx, w, id); err != nil {
		t.Error(err)
	}
	waitState(t, w, id, Suspended)
	for range queued {
		var cut *CutOffError
		var state *StateError
		if err := <-ended; !errors.As(err, &cut) && !errors.As(err, &state) {
			t.Errorf("a branch: %v", err)
		}
	}
	if len(asked) != 0 {
		t.Errorf("the guest was asked for its rest %d more times", len(asked))
	}
	// A suspension changes the state first and then releases the VM. It holds the lock until both
	// are done.
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	w.KillAll()
	w.checkClean(t)
}

// An idle sandbox is not suspended while a disk-only branch waits for its guest, because the branch
// is a request.
func TestIdleTimeoutGivesWayToABranchThatWaitsForTheGuest(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{IdleTimeout: time.Hour})
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	asked, rest := make(chan struct{}), make(chan struct{})
	w.vmms.Told = func(req agentproto.Request) error {
		if req.Op == agentproto.OpFreeze {
			close(asked)
			<-rest
		}
		return nil
	}
	done, ended := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "d", Mode: vm.BranchDisk})
		done <- err
	}()
	<-asked
	go func() { defer close(ended); w.suspendIdle(s) }()
	time.Sleep(20 * time.Millisecond) // time for suspendIdle to wait for the branch
	close(rest)
	<-ended
	if err := <-done; err != nil || s.Info().State != Running {
		t.Errorf("the branch: %v; the sandbox is %v", err, s.Info().State)
	}
	w.KillAll()
	w.checkClean(t)
}
