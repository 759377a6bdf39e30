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

// made is a record of the objects that a call has created and whose ids the daemon has chosen. If
// the call is cancelled, its caller receives no answer and never learns these ids. So the call
// removes the objects.
type made struct {
	sandboxes []string
	snapshot  string // tag chosen by the daemon
}

// Fork makes sandboxes. If the caller leaves, the daemon may still carry out the request, and
// without the daemon's answer the ids would be lost. So Fork waits for the answer even if the
// caller has left.
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

// Branch makes a snapshot. If the daemon chooses the tag, Branch waits for its answer like Fork,
// even if the caller leaves. If the caller has chosen the tag, Branch does not wait, because the
// caller can look for the snapshot.
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

// left checks whether the caller has left. If so, it returns an error, even if the call's context
// has not been cancelled yet.
func left(ctx context.Context) error {
	return cmp.Or(ctx.Err(), ctx.Value(messageKey{}).(*message).ctx.Err())
}

// takeBack removes the objects that the call has made. If the caller's token is not allowed to
// delete snapshots, a snapshot stays, and the caller can find it in the list.
func (c *call) takeBack(ctx context.Context) {
	removeAll(ctx, c.Client, c.made.sandboxes)
	if c.made.snapshot == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	_ = c.DeleteSnapshot(ctx, c.made.snapshot, client.DeleteOptions{}) // the caller has left, so the error is dropped
}

// removeAll kills sandboxes, even if the caller has left, and returns the sandboxes that it could
// not kill.
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
