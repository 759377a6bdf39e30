package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	v1 "github.com/forkd/forkd/api/v1"
)

func sandboxPath(id, suffix string) string { return "/v1/sandboxes/" + url.PathEscape(id) + suffix }

// Fork starts children. All of them start or none is left, unless AllowPartial is set.
func (c *Client) Fork(ctx context.Context, req ForkRequest) (f Forked, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/forks", req, &f)
	return f, err
}

// Sandboxes lists all sandboxes, oldest first.
func (c *Client) Sandboxes(ctx context.Context) (list []Sandbox, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/sandboxes", nil, &list)
	return list, err
}

// Sandbox describes one sandbox.
func (c *Client) Sandbox(ctx context.Context, id string) (s Sandbox, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, ""), nil, &s)
	return s, err
}

// Kill ends a sandbox and removes everything of it.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, sandboxPath(id, ""), nil, nil)
}

// ChangeLabels sets labels of a sandbox, and takes those away whose value is nil. The others stay.
func (c *Client) ChangeLabels(ctx context.Context, id string, change map[string]*string) (s Sandbox, err error) {
	err = c.call(ctx, http.MethodPatch, sandboxPath(id, "/labels"), change, &s)
	return s, err
}

// Stats measures a running sandbox.
func (c *Client) Stats(ctx context.Context, id string) (s Stats, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/stats"), nil, &s)
	return s, err
}

// maxConsole bounds a console's tail, in bytes.
const maxConsole = 1 << 20

// Console returns the last output of a sandbox's serial console. The guest decides what is in it.
func (c *Client) Console(ctx context.Context, id string) ([]byte, error) {
	tail, _, err := c.ConsoleSince(ctx, id, 0)
	return tail, err
}

// ConsoleSince is Console without what came before so many bytes were written, and returns how many
// were written by now, for the next call.
func (c *Client) ConsoleSince(ctx context.Context, id string, since uint64) (tail []byte, written uint64, err error) {
	path := sandboxPath(id, "/console?since="+strconv.FormatUint(since, 10))
	resp, err := c.request(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	if written, err = strconv.ParseUint(resp.Header.Get(v1.ConsoleWritten), 10, 64); err != nil {
		return nil, 0, fmt.Errorf("console: %s: %w", v1.ConsoleWritten, err)
	}
	tail, err = io.ReadAll(io.LimitReader(resp.Body, maxConsole))
	return tail, written, err
}
