package agentclient

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Limits on how long the guest may take to freeze and thaw its file system.
const (
	restTimeout = time.Minute // limit for a freeze, which writes the whole page cache to the disk
	// limit for a thaw; the agent itself ends every freeze within this time
	wakeTimeout  = 30 * time.Second
	abortTimeout = 5 * time.Second // limit for a thaw after a freeze that failed or took too long
)

// AtRest calls f while the guest's root file system is frozen, see Freeze. The guest must freeze
// the file system before ctx ends, and within a minute. The end of ctx does not cancel f. When f
// has returned, AtRest thaws the file system, even if f has failed. The thaw uses the context
// lasting, because ctx may have ended. If it is unknown whether the freeze has failed, AtRest also
// thaws the file system.
//
// No other caller may freeze this guest at the same time. So if the file system is already frozen,
// an earlier daemon has frozen it and was killed before the thaw. AtRest then ends that freeze and
// begins its own.
func (c *Client) AtRest(ctx, lasting context.Context, f func() error) error {
	err := within(ctx, restTimeout, "come to rest (run sync in it before)", c.freezeAnew)
	if refused := (*Error)(nil); errors.As(err, &refused) {
		return err // nothing was frozen
	}
	if err != nil {
		// if this fails, the agent thaws the file system after its own limit
		_ = within(lasting, abortTimeout, "end its rest", c.Thaw)
		return err
	}
	return errors.Join(f(), within(lasting, wakeTimeout, "end its rest", c.Thaw))
}

// freezeAnew freezes the file system. If the guest refuses because the file system is frozen
// already, freezeAnew thaws it and tries again.
func (c *Client) freezeAnew(ctx context.Context) error {
	err := c.Freeze(ctx)
	if refused := (*Error)(nil); !errors.As(err, &refused) || c.Thaw(ctx) != nil {
		return err
	}
	return c.Freeze(ctx)
}

// within adds a deadline to a call of f, because f waits for the guest. If f has failed and ctx has
// ended, the result is the cause of the end.
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
