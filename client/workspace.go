package client

import (
	"context"
	"net/http"
	"net/url"
)

// Workspace is a name for a sandbox that is suspended and brought back.
type Workspace struct {
	ID            string `json:"id"`
	Name          string `json:"name"`
	SourceTag     string `json:"source_snapshot_tag"`
	StateTag      string `json:"current_state_tag,omitempty"` // the snapshot of its suspended state
	Status        string `json:"status"`                      // "running", "suspended", or "stale": its VM has ended, resume brings back its latest suspended state, if any
	LiveSandboxID string `json:"live_sandbox_id,omitempty"`
	CreatedAt     int64  `json:"created_at_unix"`
	LastActive    int64  `json:"last_active_unix"`
}

// WorkspaceRequest asks for a workspace.
type WorkspaceRequest struct {
	Name            string            `json:"name"`
	SnapshotTag     string            `json:"snapshot_tag"`
	MemoryLimitMiB  uint64            `json:"memory_limit_mib,omitempty"`
	Env             map[string]string `json:"env,omitempty"`
	IdleTimeoutSecs float64           `json:"idle_timeout_secs,omitempty"`
}

func workspacePath(name, suffix string) string {
	return "/v1/workspaces/" + url.PathEscape(name) + suffix
}

// CreateWorkspace forks a sandbox and gives it a name.
func (c *Client) CreateWorkspace(ctx context.Context, req WorkspaceRequest) (w Workspace, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/workspaces", req, &w)
	return w, err
}

// Workspaces lists all workspaces.
func (c *Client) Workspaces(ctx context.Context) (list []Workspace, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/workspaces", nil, &list)
	return list, err
}

// Workspace describes one workspace.
func (c *Client) Workspace(ctx context.Context, name string) (w Workspace, err error) {
	_, err = c.call(ctx, http.MethodGet, workspacePath(name, ""), nil, &w)
	return w, err
}

// SuspendWorkspace suspends the sandbox of a workspace.
func (c *Client) SuspendWorkspace(ctx context.Context, name string) (w Workspace, err error) {
	_, err = c.call(ctx, http.MethodPost, workspacePath(name, "/suspend"), nil, &w)
	return w, err
}

// ResumeWorkspace brings the sandbox of a workspace back.
func (c *Client) ResumeWorkspace(ctx context.Context, name string) (w Workspace, err error) {
	_, err = c.call(ctx, http.MethodPost, workspacePath(name, "/resume"), nil, &w)
	return w, err
}

// DeleteWorkspace removes a workspace and its sandbox, whatever its state.
func (c *Client) DeleteWorkspace(ctx context.Context, name string) error {
	_, err := c.call(ctx, http.MethodDelete, workspacePath(name, ""), nil, nil)
	return err
}
