package sandbox

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/vmpool"
)

// The hundred children of a failed fork are killed concurrently, because killing a VM takes some
// time.
func TestFailedForkEndsItsChildrenTogether(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	if _, err := w.Bake(t.Context(), w.bake); err != nil {
		t.Fatal(err)
	}
	const n = 3 * vmpool.AtOnce
	w.vmms.ForkedErr = func(i int) error {
		if i == n {
			return errors.New("no answer")
		}
		return nil
	}
	var mu sync.Mutex
	calls, now, most := 0, 0, 0
	together := make(chan struct{})
	w.vmms.Killing = func() {
		mu.Lock()
		if calls++; calls == 1 { // the child that failed is killed before the other children
			mu.Unlock()
			return
		}
		if now++; now > most {
			most = now
		}
		if now == vmpool.AtOnce {
			select {
			case <-together:
			default:
				close(together)
			}
		}
		mu.Unlock()
		select { // if the kills were not concurrent, this would block for ever
		case <-together:
		case <-time.After(10 * time.Second):
		}
		mu.Lock()
		now--
		mu.Unlock()
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: n}); err == nil {
		t.Fatal("the fork succeeded")
	}
	if most != vmpool.AtOnce {
		t.Errorf("%d VMs were ended at once, want %d", most, vmpool.AtOnce)
	}
	w.checkClean(t)
}

// Kill waits for the end of a VM only if the sandbox has volumes, or if too many VMs are ending.
func TestKillDoesNotWait(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	const ending = 64 // the maximum of vmpool.Killer
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: ending + 1})
	if err != nil {
		t.Fatal(err)
	}
	dies := make(chan struct{})
	w.vmms.Killing = func() { <-dies }
	for _, s := range r.Sandboxes[:ending] {
		if err := w.Kill(s.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(w.vmDir(s.ID)); !os.IsNotExist(err) {
			t.Errorf("the directory of a killed VM: %v", err)
		}
	}
	if n := len(w.List()); n != 1 {
		t.Errorf("%d sandboxes are listed, want 1", n)
	}
	last := make(chan error)
	go func() { last <- w.Kill(r.Sandboxes[ending].ID) }()
	select {
	case err := <-last:
		t.Errorf("while %d VMs are ending: %v", ending, err)
	case <-time.After(50 * time.Millisecond):
	}
	close(dies)
	if err := <-last; err != nil {
		t.Error(err)
	}
	if !w.killer.Wait() && w.vmms.Count() > 0 {
		t.Errorf("%d VMs have not ended", w.vmms.Count())
	}
	w.checkClean(t)
}
