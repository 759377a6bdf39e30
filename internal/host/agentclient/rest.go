package agentclient

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Bounds on what the guest may take to come to rest and to end it.
const (
	restTimeout  = time.Minute      // to write back all of its page cache
	wakeTimeout  = 30 * time.Second // longer than the rest lasts: then the agent has ended it
	abortTimeout = 5 * time.Second  // to end a rest that was asked for in vain
)

// AtRest calls f while the guest's root file system is at rest, see Freeze. The guest has as long for
// that as ctx lasts, and a minute at most. What follows is bounded by lasting: f is not called off, and
// the rest is ended whatever becomes of it, also where the guest may come to it too late.
func (c *Client) AtRest(ctx, lasting context.Context, f func() error) error {
	err := within(ctx, restTimeout, "come to rest (run sync in it before)", c.Freeze)
	if refused := (*Error)(nil); errors.As(err, &refused) {
		return err // the guest has no rest to end
	}
	if err != nil {
		_ = within(lasting, abortTimeout, "end its rest", c.Thaw) // else the guest does, after wakeTimeout
		return err
	}
	return errors.Join(f(), within(lasting, wakeTimeout, "end its rest", c.Thaw))
}

// within calls f, which waits for the guest, with a deadline. Its error is why ctx has ended, if it has.
func within(ctx context.Context, limit time.Duration, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest did not %s within %v: %w", what, limit,
		context.DeadlineExceeded))
	defer cancel()
	err := f(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}
