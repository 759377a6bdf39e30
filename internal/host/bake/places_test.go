package bake

import (
	"context"
	"testing"
	"time"
)

// Parents whose disk comes from a client without the right to bake have separate places and a time
// limit.
func TestDisksOfClientsHavePlacesOfTheirOwn(t *testing.T) {
	admitted := 0
	k := New(Config{Admit: func(context.Context, uint32, uint64) (func(), error) {
		admitted++
		return func() { admitted-- }, nil
	}})
	for _, req := range []Request{{Client: "a", Foreign: true}, {Client: "b", Transient: true}} {
		ctx, leave, err := k.enter(t.Context(), &req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if leave(); admitted < 0 {
				t.Error("a parent leaves the host twice")
			}
		}()
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > bootTimeout {
			t.Errorf("%+v ends at %v, %v", req, at, ok)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := k.enter(short, &Request{Client: "c", Foreign: true}); err == nil {
		t.Error("a third one has a place")
	}
	if admitted != 2 {
		t.Errorf("%d parents of clients count on the host", admitted)
	}
	_, leave, err := k.enter(t.Context(), &Request{Client: "a"})
	if err != nil {
		t.Fatal(err)
	}
	leave()
}
