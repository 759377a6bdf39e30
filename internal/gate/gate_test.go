package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// One key has at most its share of the places, and other keys can have the other places.
func TestOneKeyLeavesRoomForOthers(t *testing.T) {
	for _, total := range []int{2, 3, 4, 16, 512} {
		g, share := New(total), func(key string) Share { return Share{key, Fair(total)} }
		var leave []func()
		var full *FullError
		for {
			l, err := g.Enter(share("a"))
			if err != nil {
				if !errors.As(err, &full) || full.Key != "a" || full.Limit != Fair(total) {
					t.Errorf("%d places: %v", total, err)
				}
				break
			}
			leave = append(leave, l)
		}
		if len(leave) != Fair(total) || len(leave) >= total {
			t.Errorf("%d places: one key has %d", total, len(leave))
		}
		for range total - len(leave) {
			l, err := g.Enter(share("b"), Share{"box", 0})
			if err != nil {
				t.Fatalf("%d places: another key: %v", total, err)
			}
			leave = append(leave, l)
		}
		if _, err := g.Enter(share("c")); !errors.As(err, &full) || full.Key != "" {
			t.Errorf("%d places, all taken: %v", total, err)
		}
		for _, l := range leave {
			l()
		}
		if n, most := g.Count(); n != 0 || most != total || len(g.by) != 0 {
			t.Errorf("%d of %d are taken when all have left: %v", n, most, g.by)
		}
	}
	if Fair(1) != 1 {
		t.Error("nobody may have the only place")
	}
}

// A place counts in every share that it was taken for. If one of the shares is full, no place is
// taken, and the other shares do not change.
func TestAPlaceCountsInEveryShare(t *testing.T) {
	g := New(10)
	leave, err := g.Enter(Share{"a", 5}, Share{"box", 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Enter(Share{"b", 5}, Share{"box", 1}); err == nil {
		t.Error("a full share was passed over")
	}
	leave()
	if leave, err = g.Enter(Share{"b", 1}, Share{"box", 1}); err != nil {
		t.Error(err)
	}
	leave()
}

// A caller that is the only one with its key does not wait behind all callers of another key, even
// if there is only one place.
func TestThoseWithTheFewestBeforeThemComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(1)
		held, err := g.Wait(t.Context(), Share{Key: "a"})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []string
		var group sync.WaitGroup
		enter := func(name, key string) {
			group.Go(func() {
				leave, err := g.Wait(t.Context(), Share{Key: key})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				leave()
			})
			synctest.Wait() // the caller is waiting
		}
		for i := range 4 {
			enter(fmt.Sprint("a", i), "a")
		}
		enter("b0", "b")
		enter("c0", "c")
		enter("b1", "b")
		held()
		group.Wait()
		if want := []string{"b0", "c0", "a0", "b1", "a1", "a2", "a3"}; !slices.Equal(order, want) {
			t.Errorf("they came in as %v, want %v", order, want)
		}
		if n, _ := g.Count(); n != 0 || len(g.by) != 0 {
			t.Errorf("%d places are taken when all have left", n)
		}
	})
}

// A caller that waits because its share is full does not keep other callers from free places. A
// caller that gives up is removed from the queue.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(2)
		first, err := g.Wait(t.Context(), Share{"a", 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := g.Wait(ctx, Share{"a", 1})
			gone <- err
		}()
		synctest.Wait()
		second, err := g.Wait(t.Context(), Share{"b", 1})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("one that gave up: %v", err)
		}
		if _, err := g.Wait(ctx, Share{"c", 1}); !errors.Is(err, context.Canceled) {
			t.Errorf("one that had given up: %v", err)
		}
		first()
		second()
		if n, _ := g.Count(); n != 0 || len(g.by) != 0 || len(g.queue) != 0 {
			t.Errorf("%d places are taken, %v wait", n, g.queue)
		}
	})
}

// A place that a caller has waited for counts in every share. A caller receives no place while one
// of its shares is full.
func TestAPlaceThatWasWaitedForCountsInEveryShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(4)
		kind := Share{"kind", 2}
		var leave []func()
		for _, key := range []string{"a", "b"} {
			l, err := g.Wait(t.Context(), Share{key, 3}, kind)
			if err != nil {
				t.Fatal(err)
			}
			leave = append(leave, l)
		}
		got := make(chan func(), 1)
		go func() {
			l, err := g.Wait(t.Context(), Share{"c", 3}, kind)
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		synctest.Wait()
		if n, _ := g.Count(); n != 2 || g.Waiting() != 1 {
			t.Errorf("%d places are taken and %d wait, want 2 and 1", n, g.Waiting())
		}
		leave[0]()
		(<-got)()
		leave[1]()
		if n, _ := g.Count(); n != 0 || len(g.by) != 0 {
			t.Errorf("%d places are taken when all have left: %v", n, g.by)
		}
	})
}

// A Hold receives either all places that it asks for or no places. Leave frees all of them.
func TestAHoldGrows(t *testing.T) {
	g := New(100)
	one, other := g.Hold(Share{"a", 75}), g.Hold(Share{"b", 75})
	for _, n := range []int{50, 25} {
		if err := one.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	var full *FullError
	if err := one.Add(1); !errors.As(err, &full) || full.Key != "a" {
		t.Errorf("more than its share: %v", err)
	}
	if err := other.Add(26); !errors.As(err, &full) || full.Key != "" {
		t.Errorf("more than there is: %v", err)
	}
	if err := other.Add(25); err != nil {
		t.Errorf("the rest: %v", err)
	}
	one.Leave()
	one.Leave()
	if n, _ := g.Count(); n != 25 {
		t.Errorf("%d places are taken, want 25", n)
	}
	other.Leave()
	if n, _ := g.Count(); n != 0 || len(g.by) != 0 {
		t.Errorf("%d places are taken when all have left: %v", n, g.by)
	}
}

// The queue is limited for each key and for all keys together. The first caller of a key may always
// wait.
func TestTheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewQueued(1, Queue{Key: 2, All: 3})
		held, err := g.Wait(t.Context(), Share{Key: "a"})
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		wait := func(key string) {
			group.Go(func() {
				leave, err := g.Wait(t.Context(), Share{Key: key})
				if err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				leave()
			})
			synctest.Wait()
		}
		refused := func(key string) {
			t.Helper()
			var full *FullError
			if _, err := g.Wait(t.Context(), Share{Key: key}); !errors.As(err, &full) || !full.Waiting {
				t.Errorf("one more of %s: %v", key, err)
			}
		}
		wait("a")
		wait("a")
		refused("a")
		wait("b")
		refused("b") // three callers are waiting
		wait("c")
		refused("c")
		if n := g.Waiting(); n != 4 {
			t.Errorf("%d wait, want 4", n)
		}
		held()
		group.Wait()
		if n, _ := g.Count(); n != 0 || g.Waiting() != 0 || len(g.by) != 0 {
			t.Errorf("%d places are taken, %d wait", n, g.Waiting())
		}
	})
}
