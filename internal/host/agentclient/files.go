package agentclient

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// ReadFile opens a file of the guest as user (empty: the default user; relative paths are in the
// user's home). The caller bounds how much it reads and closes it.
func (c *Client) ReadFile(ctx context.Context, path, user string) (io.ReadCloser, error) {
	op := "read file " + path
	resp, err := c.filesRequest(ctx, http.MethodGet, path, user, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, httpError(op, resp)
	}
	return resp.Body, nil
}

// WriteFile writes a file of the guest as user, creating its directories and replacing what is
// there.
func (c *Client) WriteFile(ctx context.Context, path, user string, content io.Reader) error {
	op := "write file " + path
	resp, err := c.filesRequest(ctx, http.MethodPost, path, user, content)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return httpError(op, resp)
	}
	return nil
}

func (c *Client) filesRequest(ctx context.Context, method, path, user string, body io.Reader) (*http.Response, error) {
	query := url.Values{"path": {path}}
	if user != "" {
		query.Set("username", user)
	}
	req, err := http.NewRequestWithContext(ctx, method, envdURL+"/files?"+query.Encode(), body)
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	return c.envd.Do(req)
}
