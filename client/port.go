package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	v1 "github.com/forkd/forkd/api/v1"
)

// PortConn is a connection to a port of a sandbox. CloseWrite ends what the client sends, and only
// that.
type PortConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// DialPort connects to a TCP port of a sandbox, on which a server listens on 127.0.0.1, ::1 or all
// addresses. The connection ends with ctx, and with the sandbox.
func (c *Client) DialPort(ctx context.Context, id string, port int) (PortConn, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	resp, err := c.sendBy(ctx, c.upgrades, http.MethodGet, sandboxPath(id, "/tcp/"+strconv.Itoa(port)), nil,
		http.Header{"Connection": {"Upgrade"}, "Upgrade": {"tcp"}})
	if err != nil {
		return nil, err
	}
	conn, ok := resp.Body.(PortConn)
	if !ok || resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body.Close()
		return nil, errors.New("connect to a port: " + resp.Status + ": not an answer of a forkd daemon")
	}
	return conn, nil
}

// PortURL asks for a URL by which everybody who has it reaches an HTTP server in a sandbox. It is
// good for as long as req says, as long as the sandbox lives.
func (c *Client) PortURL(ctx context.Context, id string, port int, req PortURLRequest) (u PortURL, err error) {
	if err := checkPort(port); err != nil {
		return u, err
	}
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/ports/"+strconv.Itoa(port)+"/url"), req, &u)
	return u, err
}

// The messages of PortURL.
type (
	PortURLRequest = v1.PortURLRequest
	PortURL        = v1.PortURL
)
