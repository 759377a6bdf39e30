package agentclient

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Limits on the time in which the guest freezes its file system and thaws it.
const (
	restTimeout  = time.Minute      // to write back its whole page cache
	wakeTimeout  = 30 * time.Second // longer than a freeze lasts: by then the agent has thawed it
	abortTimeout = 5 * time.Second  // to thaw after a freeze that failed or timed out
)

// AtRest calls f while the guest's root file system is frozen, see Freeze. The guest must freeze it
// before ctx ends, and within a minute. The end of ctx does not cancel f. Whatever f returns, the
// file system is thawed afterwards, unless lasting ends first. It is also thawed if the freeze
// failed, because the guest may still complete it.
func (c *Client) AtRest(ctx, lasting context.Context, f func() error) error {
	err := within(ctx, restTimeout, "come to rest (run sync in it before)", c.Freeze)
	if refused := (*Error)(nil); errors.As(err, &refused) {
		return err // there is nothing to thaw
	}
	if err != nil {
		_ = within(lasting, abortTimeout, "end its rest", c.Thaw) // if this fails, the agent thaws it at its own time limit
		return err
	}
	return errors.Join(f(), within(lasting, wakeTimeout, "end its rest", c.Thaw))
}

// within calls f, which waits for the guest, with a deadline. If ctx has ended, the error is the
// cause of its end.
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
