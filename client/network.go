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

// SetNetwork replaces the network policy of a sandbox, including the network limits. Connections
// that the new policy denies are reset.
func (c *Client) SetNetwork(ctx context.Context, id string, network Network) (n SandboxNetwork, err error) {
	err = c.call(ctx, http.MethodPut, sandboxPath(id, "/network"), network, &n)
	return n, err
}

// Effects lists the requests of a sandbox that were held.
func (c *Client) Effects(ctx context.Context, id string) (e Effects, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/effects"), nil, &e)
	return e, err
}

// ReleaseEffects ends the hold of a sandbox. Waiting requests are sent to their servers. The result
// lists the requests that were held until then.
func (c *Client) ReleaseEffects(ctx context.Context, id string) (e Effects, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/effects/release"), nil, &e)
	return e, err
}
