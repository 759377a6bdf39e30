package client

import (
	"context"
	"net/http"
)

// Limits returns the limits of a sandbox and its usage.
func (c *Client) Limits(ctx context.Context, id string) (l SandboxLimits, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/limits"), nil, &l)
	return l, err
}

// SetLimits replaces the limits of a sandbox. The new limits are in force when SetLimits returns.
func (c *Client) SetLimits(ctx context.Context, id string, limits Limits) (l SandboxLimits, err error) {
	err = c.call(ctx, http.MethodPut, sandboxPath(id, "/limits"), limits, &l)
	return l, err
}
