package mcp

import (
	"cmp"
	"context"
	"time"

	"github.com/forkd/forkd/client"
)

// Time limits for work that continues after the caller has left.
const (
	makeTime    = 5 * time.Minute
	cleanupTime = time.Minute
)

// made holds what a call has made and its caller learns of only by the answer. A cancelled call has
// no answer, and removes it again.
type made struct {
	sandboxes []string
	snapshot  string // tag chosen by the daemon
}

// Fork makes sandboxes. It continues when the caller has left: an interrupted request may still be
// carried out, and then the ids would be lost.
func (c *call) Fork(ctx context.Context, req client.ForkRequest) (client.Forked, error) {
	if err := left(ctx); err != nil {
		return client.Forked{}, err
	}
	inner, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTime)
	defer cancel()
	f, err := c.Client.Fork(inner, req)
	for _, s := range f.Sandboxes {
		c.made.sandboxes = append(c.made.sandboxes, s.ID)
	}
	if err == nil {
		err = left(ctx)
	}
	return f, err
}

// Branch makes a snapshot. Without a tag it continues like Fork; a caller that has named a tag can
// look for it.
func (c *call) Branch(ctx context.Context, id string, req client.BranchRequest) (client.Snapshot, error) {
	if req.Tag != "" {
		return c.Client.Branch(ctx, id, req)
	}
	inner, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTime)
	defer cancel()
	s, err := c.Client.Branch(inner, id, req)
	c.made.snapshot = s.Tag
	if err == nil {
		err = left(ctx)
	}
	return s, err
}

// left returns an error if the caller has left. The call's context may be cancelled slightly later.
func left(ctx context.Context) error {
	return cmp.Or(ctx.Err(), ctx.Value(messageKey{}).(*message).ctx.Err())
}

// takeBack removes what the call has made. A snapshot stays, and is listed, if the caller's token
// may not delete snapshots.
func (c *call) takeBack(ctx context.Context) {
	removeAll(ctx, c.Client, c.made.sandboxes)
	if c.made.snapshot == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	_ = c.DeleteSnapshot(ctx, c.made.snapshot, client.DeleteOptions{}) // no caller is left for the error
}

// removeAll kills sandboxes, even after the caller has left, and returns those that remain.
func removeAll(ctx context.Context, cl *client.Client, ids []string) (rest []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	for _, id := range ids {
		if err := cl.Kill(ctx, id); err != nil && !client.IsNotFound(err) {
			rest = append(rest, id)
		}
	}
	return rest
}
