// Package pause waits for some time, unless a context ends first. The callers decide what to do
// afterwards, and for how long they wait.
package pause

import (
	"context"
	"time"
)

// For waits for the time d. If ctx ends first, it returns the error of ctx.
func For(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
