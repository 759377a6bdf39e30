package client

import (
	"context"
	"net/http"
)

// BranchRequest asks for a snapshot of a running sandbox.
type BranchRequest struct {
	Tag       string `json:"tag,omitempty"`        // empty: the daemon chooses one
	Mode      string `json:"mode,omitempty"`       // "live" (also if empty), "diff" or "full"
	ParentTag string `json:"parent_tag,omitempty"` // refuse if the sandbox does not run from this snapshot

	// NoWait returns when the sandbox runs again, before the snapshot, then "writing", is complete. Mode must be "live".
	NoWait bool `json:"-"`
}

// Branch makes a snapshot of a sandbox, which goes on running.
func (c *Client) Branch(ctx context.Context, id string, req BranchRequest) (s Snapshot, err error) {
	body := struct {
		BranchRequest
		Wait bool `json:"wait"`
	}{req, !req.NoWait}
	_, err = c.call(ctx, http.MethodPost, sandboxPath(id, "/branch"), body, &s)
	return s, err
}

// RolledBack is a sandbox that was put back. Times are in milliseconds from the request.
type RolledBack struct {
	Sandbox
	RolledBackTo    string  `json:"rolled_back_to"`
	RollbackVMMMS   float64 `json:"rollback_vmm_ms"`   // its vCPUs ran
	RollbackReadyMS float64 `json:"rollback_ready_ms"` // its agent had confirmed
}

// Rollback puts a sandbox back to a snapshot of its line; empty: the one it runs from.
func (c *Client) Rollback(ctx context.Context, id, to string) (r RolledBack, err error) {
	_, err = c.call(ctx, http.MethodPost, sandboxPath(id, "/rollback"), map[string]string{"to": to}, &r)
	return r, err
}

// Pause stops a sandbox where it is.
func (c *Client) Pause(ctx context.Context, id string) (s Sandbox, err error) {
	_, err = c.call(ctx, http.MethodPost, sandboxPath(id, "/pause"), nil, &s)
	return s, err
}

// Resume lets a paused sandbox run on, or brings a suspended one back.
func (c *Client) Resume(ctx context.Context, id string) (s Sandbox, err error) {
	_, err = c.call(ctx, http.MethodPost, sandboxPath(id, "/resume"), nil, &s)
	return s, err
}

// Suspend saves a sandbox to disk and frees its memory. Resume brings it back under the same id.
func (c *Client) Suspend(ctx context.Context, id string) (s Sandbox, err error) {
	_, err = c.call(ctx, http.MethodPost, sandboxPath(id, "/suspend"), nil, &s)
	return s, err
}

// CompactSnapshot makes a snapshot with the content of another and no layers but its own.
func (c *Client) CompactSnapshot(ctx context.Context, tag, to string) (s Snapshot, err error) {
	_, err = c.call(ctx, http.MethodPost, snapshotPath(tag, "/compact"), map[string]string{"to": to}, &s)
	return s, err
}
