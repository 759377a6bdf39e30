package client

import (
	"context"
	"net/http"
	"net/url"
)

func workspacePath(name, suffix string) string {
	return "/v1/workspaces/" + url.PathEscape(name) + suffix
}

// CreateWorkspace forks a sandbox and gives it a name.
func (c *Client) CreateWorkspace(ctx context.Context, req WorkspaceRequest) (w Workspace, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/workspaces", req, &w)
	return w, err
}

// Workspaces lists all workspaces.
func (c *Client) Workspaces(ctx context.Context) (list []Workspace, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/workspaces", nil, &list)
	return list, err
}

// Workspace describes one workspace.
func (c *Client) Workspace(ctx context.Context, name string) (w Workspace, err error) {
	err = c.call(ctx, http.MethodGet, workspacePath(name, ""), nil, &w)
	return w, err
}

// SuspendWorkspace suspends the sandbox of a workspace.
func (c *Client) SuspendWorkspace(ctx context.Context, name string) (w Workspace, err error) {
	err = c.call(ctx, http.MethodPost, workspacePath(name, "/suspend"), nil, &w)
	return w, err
}

// ResumeWorkspace resumes the sandbox of a workspace.
func (c *Client) ResumeWorkspace(ctx context.Context, name string) (w Workspace, err error) {
	err = c.call(ctx, http.MethodPost, workspacePath(name, "/resume"), nil, &w)
	return w, err
}

// DeleteWorkspace removes a workspace and its sandbox, whatever the sandbox's state.
func (c *Client) DeleteWorkspace(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, workspacePath(name, ""), nil, nil)
}
