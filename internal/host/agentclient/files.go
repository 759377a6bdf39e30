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
	resp, err := c.filesRequest(ctx, http.MethodGet, "/files", path, user, nil)
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
	resp, err := c.filesRequest(ctx, http.MethodPost, "/files", path, user, content)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return httpError(op, resp)
	}
	return nil
}

// ReadTree packs what is below a directory of the guest as a tar archive, as user. The caller
// distrusts it, bounds how much it reads, and closes it.
func (c *Client) ReadTree(ctx context.Context, path, user string) (io.ReadCloser, error) {
	op := "read directory " + path
	resp, err := c.filesRequest(ctx, http.MethodGet, "/archive", path, user, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, httpError(op, resp)
	}
	return resp.Body, nil
}

// WriteTree unpacks a tar archive in a directory of the guest, which is made if there is none. What
// it makes belongs to user.
func (c *Client) WriteTree(ctx context.Context, path, user string, archive io.Reader) error {
	op := "write directory " + path
	resp, err := c.filesRequest(ctx, http.MethodPost, "/archive", path, user, archive)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return httpError(op, resp)
	}
	return nil
}

func (c *Client) filesRequest(ctx context.Context, method, route, path, user string, body io.Reader) (*http.Response, error) {
	query := url.Values{"path": {path}}
	if user != "" {
		query.Set("username", user)
	}
	req, err := http.NewRequestWithContext(ctx, method, envdURL+route+"?"+query.Encode(), body)
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	return c.envd.Do(req)
}
