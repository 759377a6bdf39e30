package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	v1 "github.com/forkd/forkd/api/v1"
)

// ReadFile opens a file of a sandbox. The caller closes it.
func (c *Client) ReadFile(ctx context.Context, id, path string) (io.ReadCloser, error) {
	if err := checkFile("path", path); err != nil {
		return nil, err
	}
	resp, err := c.request(ctx, http.MethodGet, c.filesPath(id, path), "", nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteFile writes a file of a sandbox. It creates missing directories and replaces an existing
// file.
func (c *Client) WriteFile(ctx context.Context, id, path string, content io.Reader) error {
	if err := checkFile("path", path); err != nil {
		return err
	}
	resp, err := c.request(ctx, http.MethodPut, c.filesPath(id, path), "application/octet-stream", content)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ReadTree opens a directory of a sandbox as a tar archive, which the caller closes. The sandbox
// writes the archive, so its content must not be trusted.
func (c *Client) ReadTree(ctx context.Context, id, path string) (io.ReadCloser, error) {
	if err := checkFile("path", path); err != nil {
		return nil, err
	}
	resp, err := c.request(ctx, http.MethodGet, c.pathQuery(id, "/archive", path), "", nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteTree unpacks a tar archive into a directory of a sandbox and creates the directory if it is
// missing. It replaces existing files and keeps the other entries of existing directories.
func (c *Client) WriteTree(ctx context.Context, id, path string, archive io.Reader) error {
	if err := checkFile("path", path); err != nil {
		return err
	}
	resp, err := c.request(ctx, http.MethodPut, c.pathQuery(id, "/archive", path), v1.Tar, archive)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// StatFile describes a file, a directory or a symbolic link of a sandbox.
func (c *Client) StatFile(ctx context.Context, id, path string) (f File, err error) {
	if err := checkFile("path", path); err != nil {
		return f, err
	}
	err = c.call(ctx, http.MethodGet, c.pathQuery(id, "/files/stat", path), nil, &f)
	return f, err
}

// ListFiles describes the entries of a directory of a sandbox, down to a depth from 1 to 64. With
// depth 1 it lists only the entries of the directory itself.
func (c *Client) ListFiles(ctx context.Context, id, path string, depth int) (list []File, err error) {
	target, err := c.listPath(id, path, depth)
	if err != nil {
		return nil, err
	}
	err = c.call(ctx, http.MethodGet, target, nil, &list)
	return list, err
}

// listPath returns the path and query of ListFiles.
func (c *Client) listPath(id, path string, depth int) (string, error) {
	if err := checkFile("path", path); err != nil {
		return "", err
	}
	if depth < 1 || depth > maxDepth {
		return "", wrong("depth", "%d: want 1 to %d", depth, maxDepth)
	}
	query := url.Values{"path": {path}, "depth": {strconv.Itoa(depth)}}
	return withQuery(sandboxPath(id, "/files/list"), c.fileQuery(query)), nil
}

// EachFile calls f with each entry of ListFiles as it arrives, and holds only one entry in memory.
// If f returns an error, EachFile stops and returns that error.
func (c *Client) EachFile(ctx context.Context, id, path string, depth int, f func(File) error) error {
	target, err := c.listPath(id, path, depth)
	if err != nil {
		return err
	}
	resp, err := c.request(ctx, http.MethodGet, target, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	route := sandboxPath(id, "/files/list")
	entries := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer))
	if begin, err := entries.Token(); err != nil {
		return fmt.Errorf("GET %s: answer: %w", route, err)
	} else if begin != json.Delim('[') {
		return fmt.Errorf("GET %s: answer: it begins with %v, want an array", route, begin)
	}
	for entries.More() {
		var file File
		if err := entries.Decode(&file); err != nil {
			return fmt.Errorf("GET %s: answer: %w", route, err)
		}
		if err := f(file); err != nil {
			return err
		}
	}
	if _, err := entries.Token(); err != nil {
		return fmt.Errorf("GET %s: answer: %w", route, err)
	}
	return nil
}

// MakeDir makes a directory of a sandbox, with its parents.
func (c *Client) MakeDir(ctx context.Context, id, path string) (f File, err error) {
	if err := checkFile("path", path); err != nil {
		return f, err
	}
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/files/mkdir"), v1.MakeDirRequest{Path: path, Username: c.user},
		&f)
	return f, err
}

// MoveFile moves a file or a directory of a sandbox to another path, and makes missing parents of
// that path.
func (c *Client) MoveFile(ctx context.Context, id, from, to string) (f File, err error) {
	if err := checkFile("from", from); err != nil {
		return f, err
	}
	if err := checkFile("to", to); err != nil {
		return f, err
	}
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/files/move"),
		v1.MoveRequest{From: from, To: to, Username: c.user}, &f)
	return f, err
}

// RemoveFile removes a path of a sandbox with everything below it. A missing path is not an error.
func (c *Client) RemoveFile(ctx context.Context, id, path string) error {
	if err := checkFile("path", path); err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, c.filesPath(id, path), nil, nil)
}

// WatchFiles calls f with each change in a directory of a sandbox and, if recursive is true, in the
// directories below it. The first event has the type "begun". The watch ends when ctx ends, when
// the connection breaks, or when f returns an error. WatchFiles then returns that error.
func (c *Client) WatchFiles(ctx context.Context, id, path string, recursive bool, f func(FileChange) error) error {
	if err := checkFile("path", path); err != nil {
		return err
	}
	query := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	header := http.Header{"Accept": {v1.EventStream}}
	resp, err := c.send(ctx, http.MethodGet, withQuery(sandboxPath(id, "/files/watch"), c.fileQuery(query)), nil, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readEvents(ctx, "watch", resp.Body, func(data []byte) error {
		var change FileChange
		if err := json.Unmarshal(data, &change); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		if p := change.Problem; p != nil {
			return &Error{Status: p.Status, Message: p.Message, Code: p.Code, Field: p.Field, Fix: p.Fix}
		}
		return f(change)
	})
}

func (c *Client) filesPath(id, path string) string { return c.pathQuery(id, "/files", path) }

func (c *Client) pathQuery(id, route, path string) string {
	return withQuery(sandboxPath(id, route), c.fileQuery(url.Values{"path": {path}}))
}

func (c *Client) fileQuery(query url.Values) url.Values {
	if c.user != "" {
		query.Set("username", c.user)
	}
	return query
}

// AsUser returns a client that accesses files and directories for a user of the sandbox: relative
// paths begin in the user's home, and new files belong to the user. But the files are accessed with
// the rights of root, so do not use paths that a program of the user can replace by links. For
// commands, set ExecRequest.User instead. The returned client shares its connections with c.
func (c *Client) AsUser(name string) *Client {
	as := *c
	as.user = name
	return &as
}

// Messages of files.
type (
	File       = v1.File
	FileChange = v1.FileChange
)
