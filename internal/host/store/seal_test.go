package store

import (
	"context"
	"testing"
)

// Deleting a snapshot cancels the computation of its digests, whether or not the computation has
// begun.
func TestRemovedSnapshotIsNotSealed(t *testing.T) {
	q := &sealer{stop: func() {}, wake: make(chan struct{}, 1)}
	for _, tag := range []string{"a", "b", "c"} {
		q.add(tag)
	}
	ctx, tag := q.next(t.Context())
	q.drop("b")
	if tag != "a" || ctx.Err() != nil {
		t.Errorf("sealing %q: %v", tag, ctx.Err())
	}
	q.drop("a")
	if ctx.Err() != context.Canceled {
		t.Errorf("sealing goes on after the removal: %v", ctx.Err())
	}
	if ctx, tag = q.next(t.Context()); tag != "c" || ctx.Err() != nil {
		t.Errorf("then %q: %v", tag, ctx.Err())
	}
	if _, tag = q.next(t.Context()); tag != "" {
		t.Errorf("at last %q", tag)
	}
}
