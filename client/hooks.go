package client

import (
	"context"
	"net/http"
)

// Hooks returns the hooks of a sandbox.
func (c *Client) Hooks(ctx context.Context, id string) (h Hooks, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/hooks"), nil, &h)
	return h, err
}

// SetHooks replaces the hooks of a sandbox. A nil hook is removed.
func (c *Client) SetHooks(ctx context.Context, id string, hooks Hooks) (h Hooks, err error) {
	err = c.call(ctx, http.MethodPut, sandboxPath(id, "/hooks"), hooks, &h)
	return h, err
}
