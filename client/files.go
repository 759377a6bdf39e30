package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
)

// ReadFile opens a file of a sandbox. The caller closes it.
func (c *Client) ReadFile(ctx context.Context, id, path string) (io.ReadCloser, error) {
	resp, err := c.request(ctx, http.MethodGet, filesPath(id, path), "", nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteFile writes a file of a sandbox, creating its directories and replacing what is there.
func (c *Client) WriteFile(ctx context.Context, id, path string, content io.Reader) error {
	resp, err := c.request(ctx, http.MethodPut, filesPath(id, path), "application/octet-stream", content)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func filesPath(id, path string) string {
	return sandboxPath(id, "/files?"+url.Values{"path": {path}}.Encode())
}
