package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
)

// PageRequest asks for a part of a list.
type PageRequest struct {
	Limit  int      // maximum number of elements; 0: all
	Cursor string   // from the previous page; empty: start at the beginning of the list
	Labels []string // NAME=VALUE or NAME; only sandboxes or volumes that have all these labels are listed
	Node   string   // only sandboxes or snapshots of this node of a router; a daemon refuses it; empty: of all nodes
}

// SandboxPage lists a part of the sandboxes, oldest first. It also returns the cursor of the
// following page. The cursor is empty after the last page.
func (c *Client) SandboxPage(ctx context.Context, req PageRequest) (list []Sandbox, next string, err error) {
	next, err = c.page(ctx, "/v1/sandboxes", req, &list)
	return list, next, err
}

// SnapshotPage lists a part of the snapshots, sorted by tag; see SandboxPage.
func (c *Client) SnapshotPage(ctx context.Context, req PageRequest) (list []Snapshot, next string, err error) {
	next, err = c.page(ctx, "/v1/snapshots", req, &list)
	return list, next, err
}

// nextLink finds the target of the link to the next page in a Link header of the daemon.
var nextLink = regexp.MustCompile(`^<([^>]*)>; rel="next"$`)

func (c *Client) page(ctx context.Context, path string, req PageRequest, out any) (next string, err error) {
	query := url.Values{"label": req.Labels}
	if req.Limit > 0 {
		query.Set("limit", strconv.Itoa(req.Limit))
	}
	if req.Cursor != "" {
		query.Set("cursor", req.Cursor)
	}
	if req.Node != "" {
		query.Set("node", req.Node)
	}
	resp, err := c.request(ctx, http.MethodGet, withQuery(path, query), "", nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return "", fmt.Errorf("GET %s: answer: %w", path, err)
	}
	if m := nextLink.FindStringSubmatch(resp.Header.Get("Link")); m != nil {
		u, err := url.Parse(m[1])
		if err != nil {
			return "", fmt.Errorf("GET %s: Link: %w", path, err)
		}
		next = u.Query().Get("cursor")
	}
	return next, nil
}
