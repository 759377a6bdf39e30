package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

func sandboxPath(id, suffix string) string { return "/v1/sandboxes/" + url.PathEscape(id) + suffix }

// Fork starts children. If one of them fails and AllowPartial is not set, the other children are
// killed.
func (c *Client) Fork(ctx context.Context, req ForkRequest) (f Forked, err error) {
	if err := checkFork(req); err != nil {
		return f, err
	}
	if err := c.call(ctx, http.MethodPost, "/v1/forks", req, &f); err != nil {
		return Forked{}, err
	}
	// Callers address the children by index, so a wrong number of children is an error.
	if n := len(f.Sandboxes); n > req.N || n < req.N && !req.AllowPartial {
		return Forked{}, fmt.Errorf("POST /v1/forks: answer: it has %d sandboxes, want %d: the daemon is defective", n, req.N)
	}
	return f, nil
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

// Kill kills a sandbox and deletes all of its files.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, sandboxPath(id, ""), nil, nil)
}

// ChangeLabels sets labels of a sandbox. It removes a label if its value in the change is nil. It
// keeps all other labels.
func (c *Client) ChangeLabels(ctx context.Context, id string, change map[string]*string) (s Sandbox, err error) {
	err = c.call(ctx, http.MethodPatch, sandboxPath(id, "/labels"), change, &s)
	return s, err
}

// SetTTL sets the time until a sandbox is deleted, in seconds from now, at most a year; 0: never.
func (c *Client) SetTTL(ctx context.Context, id string, ttlSecs float64) (s Sandbox, err error) {
	if !(ttlSecs >= 0) { // also true for NaN
		return s, wrong("ttl_secs", "%g: want 0 or more", ttlSecs)
	}
	err = c.call(ctx, http.MethodPut, sandboxPath(id, "/ttl"), TTLRequest{TTLSecs: &ttlSecs}, &s)
	return s, err
}

// Stats returns measurements of a running sandbox.
func (c *Client) Stats(ctx context.Context, id string) (s Stats, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/stats"), nil, &s)
	return s, err
}

// Written returns the figures of Stats that are cheap to measure. The result may be up to
// maxAgeSecs seconds old. The maximum of maxAgeSecs is 10, and 0 means that the figures are
// measured now.
func (c *Client) Written(ctx context.Context, id string, maxAgeSecs float64) (w Written, err error) {
	query := url.Values{"max_age_secs": {strconv.FormatFloat(maxAgeSecs, 'f', -1, 64)}}
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/written?"+query.Encode()), nil, &w)
	return w, err
}

// maxConsole bounds the tail of a console, in bytes.
const maxConsole = 1 << 20

// Console returns the last output of a sandbox's serial console. The guest controls this output.
func (c *Client) Console(ctx context.Context, id string) ([]byte, error) {
	resp, err := c.request(ctx, http.MethodGet, sandboxPath(id, "/console"), "", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, maxConsole))
}

// LogsRequest selects a part of a console.
type LogsRequest struct {
	Follow bool   // wait for new output until the sandbox ends
	Tail   string // number of last lines, or "all"; empty: all
	Since  string // RFC 3339 time, seconds of Unix time, or a duration before now, such as "10m"; empty: all
}

// Logs returns the last output of a sandbox's serial console and, with Follow, new output. The
// stream ends when the sandbox ends. If the stream is cut off earlier, a read returns an error. The
// caller closes the stream.
func (c *Client) Logs(ctx context.Context, id string, req LogsRequest) (io.ReadCloser, error) {
	query := url.Values{"follow": {strconv.FormatBool(req.Follow)}}
	for name, value := range map[string]string{"tail": req.Tail, "since": req.Since} {
		if value != "" {
			query.Set(name, value)
		}
	}
	resp, err := c.request(ctx, http.MethodGet, withQuery(sandboxPath(id, "/logs"), query), "", nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
