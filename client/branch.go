package client

import (
	"context"
	"net/http"

	v1 "github.com/forkd/forkd/api/v1"
)

// Branch makes a snapshot of a sandbox, which goes on running.
func (c *Client) Branch(ctx context.Context, id string, req BranchRequest) (s Snapshot, err error) {
	body := v1.BranchRequest{Tag: req.Tag, Mode: req.Mode, ParentTag: req.ParentTag, Wait: new(!req.NoWait),
		Labels: req.Labels}
	if req.DiskOnly {
		body.Memory = new(false)
	}
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/branch"), body, &s)
	return s, err
}

// Rollback puts a sandbox back to a snapshot of its line; empty: the one it runs from.
func (c *Client) Rollback(ctx context.Context, id, to string) (r RolledBack, err error) {
	return c.RollbackWith(ctx, id, RollbackRequest{To: to})
}

// RollbackWith is Rollback with all that a request may say.
func (c *Client) RollbackWith(ctx context.Context, id string, req RollbackRequest) (r RolledBack, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/rollback"), req, &r)
	return r, err
}

// Pause stops a sandbox where it is.
func (c *Client) Pause(ctx context.Context, id string) (s Sandbox, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/pause"), nil, &s)
	return s, err
}

// Resume lets a paused sandbox run on, or brings a suspended one back.
func (c *Client) Resume(ctx context.Context, id string) (s Sandbox, err error) {
	return c.ResumeWith(ctx, id, ResumeRequest{})
}

// ResumeWith is Resume with all that a request may say.
func (c *Client) ResumeWith(ctx context.Context, id string, req ResumeRequest) (s Sandbox, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/resume"), req, &s)
	return s, err
}

// Suspend saves a sandbox to disk and frees its memory. Resume brings it back under the same id.
func (c *Client) Suspend(ctx context.Context, id string) (s Sandbox, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/suspend"), nil, &s)
	return s, err
}

// CompactSnapshot makes a snapshot with the content of another and no layers but its own.
func (c *Client) CompactSnapshot(ctx context.Context, tag, to string) (s Snapshot, err error) {
	err = c.call(ctx, http.MethodPost, snapshotPath(tag, "/compact"), v1.CompactRequest{To: to}, &s)
	return s, err
}
