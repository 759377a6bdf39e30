package sandbox

import (
	"errors"
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
