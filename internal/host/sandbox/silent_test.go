package sandbox

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// If a guest does not answer the request to freeze its file system, the branch holds none of the
// host's places. It holds the lock of its sandbox only while the client waits. If the guest freezes
// its file system later, the file system is thawed.
func TestSilentGuestHoldsNoBranchPlace(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	guest := &asked{}
	asleep, quiet := make(chan struct{}), make(chan struct{})
	id := w.source(t)
	w.vmms.Told = func(req agentproto.Request) error {
		if err := guest.hear(req); err != nil || req.Op != agentproto.OpFreeze {
			return err
		}
		close(asleep)
		<-quiet // simulates a guest in which root has replaced the agent
		return nil
	}
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := w.Branch(ctx, id, BranchRequest{Tag: "d", Mode: vm.BranchDisk})
		done <- err
	}()
	<-asleep
	if n, most := w.BranchesInFlight(); n != 0 {
		t.Errorf("%d of %d places are taken", n, most)
	}
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client has left: %v", err)
	}
	close(quiet)
	if ops := guest.take(); !slices.Equal(ops, []agentproto.Op{agentproto.OpFreeze, agentproto.OpThaw}) {
		t.Errorf("the guest was asked for %v", ops)
	}
	w.vmms.Told = guest.hear
	w.branch(t, id, "d", vm.BranchDisk)
	w.KillAll()
	w.checkClean(t)
}

// If a sandbox is deleted, a branch that waits for its guest to freeze the file system ends.
func TestDeletionEndsTheWaitForRest(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	asleep, quiet := make(chan struct{}), make(chan struct{})
	defer close(quiet)
	id := w.source(t)
	w.vmms.Told = func(req agentproto.Request) error {
		if req.Op == agentproto.OpFreeze {
			close(asleep)
			<-quiet
		}
		return nil
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "d", Mode: vm.BranchDisk})
		done <- err
	}()
	<-asleep
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("a sandbox that is deleted was branched")
	}
	w.checkClean(t)
}

// A disk-only branch takes a place after the guest has frozen its file system. If no place is free
// at that time, the branch waits for one while the guest runs. If no place is free at the
// beginning, the branch is refused before the daemon asks the guest to freeze the file system.
func TestBranchOfTheDiskTakesAPlaceAfterTheRest(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	guest := &asked{}
	id := w.source(t)
	var leave []func()
	w.vmms.Told = func(req agentproto.Request) error {
		for req.Op == agentproto.OpFreeze {
			done, err := admit.EnterBranches(t.Context(), w.branches, false)
			if err != nil {
				break
			}
			leave = append(leave, done)
		}
		return guest.hear(req)
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "d", Mode: vm.BranchDisk})
		done <- err
	}()
	for w.branches.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	if ops := guest.take(); !slices.Equal(ops, []agentproto.Op{agentproto.OpFreeze, agentproto.OpThaw}) {
		t.Errorf("it waits when the guest was asked for %v", ops)
	}
	other := w.fork(t, "p")
	var busy *admit.BusyError
	if _, err := w.Branch(t.Context(), other, BranchRequest{Tag: "o", Mode: vm.BranchDisk}); !errors.As(err, &busy) {
		t.Errorf("another: %v", err)
	}
	if ops := guest.take(); len(ops) != 0 {
		t.Errorf("its guest was asked for %v", ops)
	}
	for _, f := range leave {
		f()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.KillAll()
	w.checkClean(t)
}
