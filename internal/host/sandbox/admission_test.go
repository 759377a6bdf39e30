package sandbox

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// wantRefused fails unless err is a refusal with the code.
func wantRefused(t *testing.T, code string, err error) {
	t.Helper()
	var refused *AdmissionError
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
	w.admit = Admission{MaxSandboxes: 4}
	w.start(t, 0)
	fork := func(n int, partial bool) (ForkResult, error) {
		return w.Fork(t.Context(), ForkRequest{Tag: "p", N: n, AllowPartial: partial})
	}
	_, err := fork(5, true)
	wantRefused(t, CodeMaxSandboxes, err)
	if w.vmms.Spawned != 1 { // that of the bake
		t.Errorf("%d VMs were started, for a fork that was refused", w.vmms.Spawned-1)
	}
	// A fork that fails, and children that do, give their places back.
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
			wantRefused(t, CodeMaxSandboxes, err)
		}
	}
	if admitted != left {
		t.Errorf("%d of 8 forks at once were admitted, there were places for %d", admitted, left)
	}
	// Who is suspended or has ended gives up the place; who is taken over keeps it.
	id := w.List()[0].ID
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := fork(1, false); err != nil {
		t.Errorf("a suspended sandbox keeps its place: %v", err)
	}
	_, err = w.Resume(t.Context(), id)
	wantRefused(t, CodeMaxSandboxes, err)
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	_, err = w.Resume(t.Context(), id)
	wantRefused(t, CodeMaxSandboxes, err)
	wantCounted := fmt.Sprint([]string{CodeMaxSandboxes})
	if got := fmt.Sprint(w.count.refused); got != wantCounted {
		t.Errorf("refusals counted: %s, want %s", got, wantCounted)
	}
	w.KillAll()
	if w.admitted.vms != 0 || w.admitted.vcpus != 0 || w.admitted.starting != 0 {
		t.Errorf("places taken of no sandboxes: %d, %d vCPUs, %d starting", w.admitted.vms, w.admitted.vcpus,
			w.admitted.starting)
	}
	w.stop()
}

func TestAdmissionLooksAtTheHost(t *testing.T) {
	const free = 100 << 20
	enough := func() (uint64, error) { return free, nil }
	room := func(string) (uint64, error) { return free, nil }
	for _, c := range []struct {
		name  string
		rules Admission
		n     int
		code  string
	}{
		{"no rules", Admission{}, 1000, ""},
		{"memory for one", Admission{MemoryReserve: free - startBytes}, 1, ""},
		{"memory for one, not two", Admission{MemoryReserve: free - startBytes}, 2, CodeHostMemory},
		{"disk", Admission{DiskReserve: free}, 1, ""},
		{"disk is short", Admission{DiskReserve: free + 1}, 1, CodeHostDisk},
		{"vCPUs", Admission{VCPUsPerCPU: 1e-9}, 1, CodeMaxVCPUs},
	} {
		a := newAdmission(c.rules, "/")
		a.available, a.room = enough, room
		err := a.enter(c.n, 2)
		if c.code != "" {
			wantRefused(t, c.code, err)
		} else if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	a := newAdmission(Admission{MemoryReserve: free - startBytes}, "/")
	a.available = enough
	if err := a.enter(1, 1); err != nil {
		t.Fatal(err)
	}
	a.asked = time.Now().Add(time.Hour)           // nobody looks again before the test says so
	wantRefused(t, CodeHostMemory, a.enter(1, 1)) // the first is still on its way
	a.started(1)
	wantRefused(t, CodeHostMemory, a.enter(1, 1)) // the host's figures do not have it yet
	a.asked = time.Time{}
	if err := a.enter(1, 1); err != nil {
		t.Errorf("the first has started, and the host's figures have it: %v", err)
	}
	if free, err := memAvailable(); err != nil || free == 0 {
		t.Errorf("the host has %d bytes available, %v", free, err)
	}
}

// VMs that the pool has for a while only go when the host has no memory for a fork.
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
	w.admitted.mu.Lock()
	w.admitted.rules.MemoryReserve = 1 << 62
	w.admitted.mu.Unlock()
	_, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1})
	wantRefused(t, CodeHostMemory, err)
	holds(1)
	w.KillAll()
}
