package bake

import (
	"context"
	"testing"
	"time"
)

// Parents whose disk comes from a client without the right to bake have separate places and a time
// limit.
func TestDisksOfClientsHavePlacesOfTheirOwn(t *testing.T) {
	k := New(Config{})
	for _, req := range []Request{{Client: "a", Foreign: true}, {Client: "b", Transient: true}} {
		ctx, leave, err := k.enter(t.Context(), &req)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > bootTimeout {
			t.Errorf("%+v ends at %v, %v", req, at, ok)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := k.enter(short, &Request{Client: "c", Foreign: true}); err == nil {
		t.Error("a third one has a place")
	}
	_, leave, err := k.enter(t.Context(), &Request{Client: "a"})
	if err != nil {
		t.Fatal(err)
	}
	leave()
}
