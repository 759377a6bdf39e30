package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	v1 "github.com/forkd/forkd/api/v1"
)

// PortConn is a connection to a port of a sandbox. CloseWrite closes only the sending direction.
type PortConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// DialPort connects to a TCP port of a sandbox. The server in the sandbox must listen on 127.0.0.1,
// ::1 or all addresses. The connection closes when ctx ends or the sandbox is deleted.
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

// PortURL returns a URL that gives anyone who holds it access to an HTTP server in a sandbox. The
// URL expires at the time that req sets, or when the sandbox is deleted.
func (c *Client) PortURL(ctx context.Context, id string, port int, req PortURLRequest) (u PortURL, err error) {
	if err := checkPort(port); err != nil {
		return u, err
	}
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/ports/"+strconv.Itoa(port)+"/url"), req, &u)
	return u, err
}

// Messages of the method PortURL.
type (
	PortURLRequest = v1.PortURLRequest
	PortURL        = v1.PortURL
)
