package client

import (
	"context"
	"net/http"
)

// Limits says what a sandbox may take from its host, and what it takes.
func (c *Client) Limits(ctx context.Context, id string) (l SandboxLimits, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/limits"), nil, &l)
	return l, err
}

// SetLimits replaces the limits of a sandbox. They are in force when it returns.
func (c *Client) SetLimits(ctx context.Context, id string, limits Limits) (l SandboxLimits, err error) {
	err = c.call(ctx, http.MethodPut, sandboxPath(id, "/limits"), limits, &l)
	return l, err
}
