package sandbox

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/admit"
)

// wantRefused fails the test unless err is an *admit.Error with the given code.
func wantRefused(t *testing.T, code string, err error) {
	t.Helper()
	var refused *admit.Error
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("got %v, want a refusal with code %s", err, code)
	}
}

func TestAdmissionIsWholeAndExact(t *testing.T) {
	w := newWorld(t, 0)
	if _, err := w.Bake(t.Context(), w.bake); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.admit = admit.Rules{MaxSandboxes: 4}
	w.start(t, 0)
	fork := func(n int, partial bool) (ForkResult, error) {
		return w.Fork(t.Context(), ForkRequest{Tag: "p", N: n, AllowPartial: partial})
	}
	_, err := fork(5, true)
	wantRefused(t, admit.CodeMaxSandboxes, err)
	if w.vmms.Spawned != 1 { // only the VMM of the bake
		t.Errorf("%d VMs were started, for a fork that was refused", w.vmms.Spawned-1)
	}
	// When a fork fails, or its children exit, their places become free.
	w.vmms.RestoreErr = func(n int) error {
		if n%2 == 1 {
			return errors.New("no")
		}
		return nil
	}
	if _, err := fork(4, false); err == nil {
		t.Fatal("a fork whose children fail succeeds")
	}
	r, err := fork(4, true)
	if err != nil {
		t.Fatal(err)
	}
	w.vmms.RestoreErr = nil
	left := 4 - len(r.Sandboxes)
	if left < 1 {
		t.Fatalf("all of %d children started", len(r.Sandboxes))
	}
	var group sync.WaitGroup
	results := make([]error, 8)
	for i := range results {
		group.Go(func() { _, results[i] = fork(1, false) })
	}
	group.Wait()
	admitted := 0
	for _, err := range results {
		if err == nil {
			admitted++
		} else {
			wantRefused(t, admit.CodeMaxSandboxes, err)
		}
	}
	if admitted != left {
		t.Errorf("%d of 8 forks at once were admitted, there were places for %d", admitted, left)
	}
	// When a sandbox is suspended or exits, its place becomes free. When another daemon takes the
	// sandbox over, the sandbox keeps its place.
	id := w.List()[0].ID
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := fork(1, false); err != nil {
		t.Errorf("a suspended sandbox keeps its place: %v", err)
	}
	_, err = w.Resume(t.Context(), id)
	wantRefused(t, admit.CodeMaxSandboxes, err)
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	_, err = w.Resume(t.Context(), id)
	wantRefused(t, admit.CodeMaxSandboxes, err)
	wantCounted := fmt.Sprint([]string{admit.CodeMaxSandboxes})
	if got := fmt.Sprint(w.count.refused); got != wantCounted {
		t.Errorf("refusals counted: %s, want %s", got, wantCounted)
	}
	w.KillAll()
	if err := w.admitted.Enter(4, 1); err != nil {
		t.Errorf("places taken of no sandboxes: %v", err)
	}
	w.stop()
}

// After a large fork, the pool keeps more VMs than usual for some time. These extra VMs are killed
// early only if the host has no memory for another fork.
func TestShortMemoryShrinksThePool(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	w.stop()
	w.poolMost = 3
	w.start(t, 1)
	defer w.stop()
	holds := func(want int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); w.PoolSize() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the pool has %d VMs, want %d", w.PoolSize(), want)
			}
		}
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 3}); err != nil {
		t.Fatal(err)
	}
	holds(3)
	w.admitted = admit.New(admit.Rules{MemoryReserve: 1 << 62}, w.cfg.DataDir, w.killer.Wait)
	_, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1})
	wantRefused(t, admit.CodeHostMemory, err)
	holds(1)
	w.KillAll()
}
