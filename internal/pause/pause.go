// Package pause waits for a time, unless a context ends before. The callers decide what to do
// afterwards, and for how long they wait.
package pause

import (
	"context"
	"time"
)

// For waits for a time. If ctx ends before, it returns the error of ctx.
func For(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
