package turns

import (
	"slices"
	"testing"
)

type object struct {
	name, owner string
	awaited     bool
}

// An object that is awaited is worked on before others. Owners take turns.
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
	}{{false, []string{"a1", "b1", "a2", "b2", "a3"}}, {true, []string{"w3", "w1", "w2"}}} { // owner a has had more turns
		var order []string
		for o, ok := q.nextLocked(c.awaited); ok; o, ok = q.nextLocked(c.awaited) {
			order = append(order, o.name)
		}
		if !slices.Equal(order, c.want) {
			t.Errorf("%v, want %v", order, c.want)
		}
	}
}
