package agentclient

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// ReadFile opens a file of the guest. Relative paths begin in the home of user, or of the default
// user if user is empty. The file is read with the rights of root, whatever the user is. The caller
// must bound how much it reads, and close the file.
func (c *Client) ReadFile(ctx context.Context, path, user string) (io.ReadCloser, error) {
	return c.download(ctx, "read file", "/files", path, user)
}

// WriteFile writes a file of the guest. It creates missing directories and replaces an existing
// file. New files belong to user.
func (c *Client) WriteFile(ctx context.Context, path, user string, content io.Reader) error {
	return c.upload(ctx, "write file", "/files", path, user, content)
}

// ReadTree packs a directory of the guest as a tar archive. The caller must not trust the archive,
// must bound how much it reads, and must close the archive.
func (c *Client) ReadTree(ctx context.Context, path, user string) (io.ReadCloser, error) {
	return c.download(ctx, "read directory", "/archive", path, user)
}

// WriteTree unpacks a tar archive into a directory of the guest. If the directory is missing,
// WriteTree creates it. New files belong to the given user.
func (c *Client) WriteTree(ctx context.Context, path, user string, archive io.Reader) error {
	return c.upload(ctx, "write directory", "/archive", path, user, archive)
}

func (c *Client) download(ctx context.Context, what, route, path, user string) (io.ReadCloser, error) {
	resp, err := c.filesRequest(ctx, http.MethodGet, what, route, path, user, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *Client) upload(ctx context.Context, what, route, path, user string, content io.Reader) error {
	resp, err := c.filesRequest(ctx, http.MethodPost, what, route, path, user, content)
	if err != nil {
		return err
	}
	_ = resp.Body.Close() // the body is empty
	return nil
}

// filesRequest makes a request. It returns the answer if the agent reports success, and otherwise
// an error.
func (c *Client) filesRequest(ctx context.Context, method, what, route, path, user string,
	body io.Reader) (*http.Response, error) {
	op := what + " " + path
	query := url.Values{"path": {path}}
	if user != "" {
		query.Set("username", user)
	}
	req, err := http.NewRequestWithContext(ctx, method, envdURL+route+"?"+query.Encode(), body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	resp, err := c.envd.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, httpError(op, resp)
	}
	return resp, nil
}
