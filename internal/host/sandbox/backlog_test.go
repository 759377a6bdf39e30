package sandbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
)

// A branch that finds no room in RAM waits, and holds none of the host's places for branches during
// the wait. The branch stops waiting when there is room, when its client disconnects, or when its
// sandbox is deleted. Suspensions and disk-only branches do not wait.
func TestBranchesWaitForRoomInRAM(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	other := w.fork(t, "p")
	release, err := w.Snapshots().ReserveRAM(t.Context(), "token:a", 1<<60, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.vmms.GuestDirty = 1 << 50 // capped at the size of the guest's memory
	for _, mode := range []vm.BranchMode{vm.BranchFull, vm.BranchDiff, vm.BranchLive} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := w.Branch(ctx, id, BranchRequest{Tag: "b", Mode: mode})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: %v", mode, err)
		}
	}
	w.vmms.GuestDirty = 0
	begin := func(id, tag string) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := w.Branch(t.Context(), id, BranchRequest{Tag: tag, Mode: vm.BranchFull})
			done <- err
		}()
		for s, _ := w.Get(id); len(s.ops) == 0; time.Sleep(time.Millisecond) {
		}
		time.Sleep(20 * time.Millisecond) // by now a branch that does not wait would be complete
		select {
		case err := <-done:
			t.Fatalf("%s does not wait: %v", tag, err)
		default:
		}
		return done
	}
	gone := begin(other, "gone")
	if n, _ := w.BranchesInFlight(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
	if err := w.Kill(other); err != nil {
		t.Fatal(err)
	}
	if err := <-gone; err == nil {
		t.Error("a branch of a sandbox that is deleted is made")
	}
	w.branch(t, id, "disk", vm.BranchDisk)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Errorf("suspend: %v", err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	waiting := begin(id, "late")
	release()
	if err := <-waiting; err != nil {
		t.Errorf("when there is room: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}
