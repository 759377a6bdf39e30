package turns

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type object struct {
	name, owner string
	awaited     bool
}

// Awaited objects have their turn before other objects. Owners take turns.
func TestOwnersTakeTurns(t *testing.T) {
	q := newQueue(Config[object]{Owner: func(o object) string { return o.owner },
		Awaited: func(o object) bool { return o.awaited }})
	for _, o := range []object{{name: "a1", owner: "a"}, {name: "a2", owner: "a"}, {name: "a3", owner: "a"},
		{name: "b1", owner: "b"}, {name: "w1", owner: "a", awaited: true}, {name: "w2", owner: "a", awaited: true},
		{name: "w3", owner: "c", awaited: true}, {name: "b2", owner: "b"}} {
		q.Add(o)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range []struct {
		awaited bool
		want    []string
	}{{false, []string{"a1", "b1", "a2", "b2", "a3"}}, {true, []string{"w3", "w1", "w2"}}} { // owner a had more turns
		var order []string
		for o, ok := q.nextLocked(c.awaited); ok; o, ok = q.nextLocked(c.awaited) {
			order = append(order, o.name)
		}
		if !slices.Equal(order, c.want) {
			t.Errorf("%v, want %v", order, c.want)
		}
	}
}

// An object whose attempt fails while the queue is being closed is tried once more, and only once.
func TestCloseTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int32
		q := New(Config[object]{
			Do:      func(object) error { attempts.Add(1); time.Sleep(time.Second); return errors.New("no space") },
			After:   func() {},
			Owner:   func(o object) string { return o.owner },
			Awaited: func(o object) bool { return o.awaited },
			Retry:   time.Hour,
		})
		q.Add(object{name: "a"})
		q.Add(object{name: "b", awaited: true})
		synctest.Wait() // both attempts are in progress
		q.Close()
		if n := attempts.Load(); n != 4 {
			t.Errorf("%d attempts for two objects, want 4", n)
		}
	})
}
