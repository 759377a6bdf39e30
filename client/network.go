package client

import (
	"context"
	"net/http"
)

// Network returns the network policy of a sandbox and its traffic.
func (c *Client) Network(ctx context.Context, id string) (n SandboxNetwork, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/network"), nil, &n)
	return n, err
}

// SetNetwork replaces the network policy and the limits of a sandbox. Connections that the new
// policy denies are reset.
func (c *Client) SetNetwork(ctx context.Context, id string, network Network) (n SandboxNetwork, err error) {
	err = c.call(ctx, http.MethodPut, sandboxPath(id, "/network"), network, &n)
	return n, err
}
