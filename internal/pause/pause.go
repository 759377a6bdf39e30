// Package pause waits. It does not know what for.
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
