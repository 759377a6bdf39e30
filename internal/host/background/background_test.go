package background

import (
	"context"
	"testing"
)

// Drop cancels the work for an object, whether or not the work has begun.
func TestDroppedWorkIsCancelled(t *testing.T) {
	q := &Queue{stop: func() {}, wake: make(chan struct{}, 1)}
	for _, tag := range []string{"a", "b", "c"} {
		q.Add(tag)
	}
	ctx, tag := q.next(t.Context())
	q.Drop("b")
	if tag != "a" || ctx.Err() != nil {
		t.Errorf("working on %q: %v", tag, ctx.Err())
	}
	q.Drop("a")
	if ctx.Err() != context.Canceled {
		t.Errorf("the work goes on: %v", ctx.Err())
	}
	if ctx, tag = q.next(t.Context()); tag != "c" || ctx.Err() != nil {
		t.Errorf("then %q: %v", tag, ctx.Err())
	}
	if _, tag = q.next(t.Context()); tag != "" {
		t.Errorf("at last %q", tag)
	}
}
