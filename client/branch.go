package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"

	v1 "github.com/forkd/forkd/api/v1"
)

// Branch makes a snapshot of a sandbox. The sandbox stays running.
func (c *Client) Branch(ctx context.Context, id string, req BranchRequest) (s Snapshot, err error) {
	body := v1.BranchRequest{Tag: req.Tag, Mode: req.Mode, ParentTag: req.ParentTag, Wait: new(!req.NoWait),
		Labels: req.Labels, Encrypt: req.Encrypt}
	if req.DiskOnly {
		body.Memory = new(false)
	}
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/branch"), body, &s)
	return s, err
}

// Rollback puts a sandbox back to a snapshot of its family. If no snapshot is given, Rollback uses
// the snapshot that the sandbox runs from.
func (c *Client) Rollback(ctx context.Context, id, to string) (r RolledBack, err error) {
	return c.RollbackWith(ctx, id, RollbackRequest{To: to})
}

// RollbackWith is like Rollback, but accepts all fields of the request.
func (c *Client) RollbackWith(ctx context.Context, id string, req RollbackRequest) (r RolledBack, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/rollback"), req, &r)
	return r, err
}

// Promote gives a sandbox the memory, disk and processes that the sandbox req.From has now. The
// promoted sandbox keeps its own id, name, labels and network policy, and loses its own state, as
// in a rollback. The sandbox req.From continues. Both sandboxes must come from the same parent.
func (c *Client) Promote(ctx context.Context, id string, req PromoteRequest) (r RolledBack, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/promote"), req, &r)
	return r, err
}

// Apply changes the files of a running sandbox as req.From has changed them since the nearest
// common ancestor of both sides. req.From is a snapshot or another sandbox of the same family.
// Apply makes either all of these changes or none. If both sides have changed the same files in
// different ways, and neither req.Prefer nor req.DryRun is set, the error is an *Error with the
// code ErrApplyConflict and the field Conflicts. Programs in the sandbox that have opened a
// replaced file keep the old file.
func (c *Client) Apply(ctx context.Context, id string, req ApplyRequest) (a Applied, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/apply"), req, &a)
	return a, err
}

// Diff compares the files of two snapshots or sandboxes of one family, and gives an upper bound of
// the memory that differs. If req.From is empty, a sandbox is compared with the snapshot that it
// runs from. Data that a sandbox has not yet written to its disk is also compared. To apply
// patches, use git apply. Other programs may let a patch change .git/hooks, and then a sandbox
// could run programs on this host.
func (c *Client) Diff(ctx context.Context, req DiffRequest) (d Diff, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/diff", req, &d)
	return d, err
}

// Export opens a tar archive of the files that differ between two snapshots or sandboxes of one
// family. The caller closes it. If req.From is empty, a sandbox is compared with the snapshot that
// it runs from. An empty file .wh.NAME in the archive stands for a deleted file NAME. The guests
// determine the content, so it must not be trusted. If the archive is incomplete, Read returns an
// error.
func (c *Client) Export(ctx context.Context, req ExportRequest) (io.ReadCloser, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	resp, err := c.request(ctx, http.MethodPost, "/v1/export", "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Pause stops the vCPUs of a sandbox.
func (c *Client) Pause(ctx context.Context, id string) (s Sandbox, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/pause"), nil, &s)
	return s, err
}

// Resume continues a paused sandbox or restores a suspended sandbox.
func (c *Client) Resume(ctx context.Context, id string) (s Sandbox, err error) {
	return c.ResumeWith(ctx, id, ResumeRequest{})
}

// ResumeWith is like Resume, but accepts all fields of the request.
func (c *Client) ResumeWith(ctx context.Context, id string, req ResumeRequest) (s Sandbox, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/resume"), req, &s)
	return s, err
}

// Suspend saves a sandbox to disk and frees its memory. Resume brings it back under the same id.
func (c *Client) Suspend(ctx context.Context, id string) (s Sandbox, err error) {
	return c.SuspendWith(ctx, id, SuspendRequest{})
}

// SuspendWith is like Suspend, but accepts all fields of the request.
func (c *Client) SuspendWith(ctx context.Context, id string, req SuspendRequest) (s Sandbox, err error) {
	var body any
	if req != (SuspendRequest{}) { // daemons of earlier releases read no body
		body = req
	}
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/suspend"), body, &s)
	return s, err
}

// CompactSnapshot makes a snapshot that has the same content, but depends on no other snapshot.
func (c *Client) CompactSnapshot(ctx context.Context, tag, to string) (s Snapshot, err error) {
	err = c.call(ctx, http.MethodPost, snapshotPath(tag, "/compact"), v1.CompactRequest{To: to}, &s)
	return s, err
}
