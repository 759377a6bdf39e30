// Package client is the Go client of the forkd daemon's REST API (api/openapi.yaml). The forkd
// command line is built on it and uses nothing else.
//
// It keeps no state and does not retry: a fork that was cut off may have happened.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strings"
)

// Client calls one daemon. Its methods may be called concurrently; their time limit is that of
// their context.
type Client struct {
	http     *http.Client
	upgrades *http.Client // HTTP/1.1 only: HTTP/2 has no upgrades
	base     string
	token    string
}

// Bounds on what a daemon may answer, in bytes.
const (
	maxAnswer = 256 << 20
	maxError  = 1 << 20
)

// New returns a client of the daemon at address, which is unix:///path/to/socket, http://host:port
// or https://host:port. token may be empty.
func New(address, token string, options ...Option) (*Client, error) {
	const want = "want unix:///path, http://host:port or https://host:port"
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("daemon address: %w: %s", err, want)
	}
	transport := &http.Transport{DisableCompression: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	for _, option := range options {
		if err := option(transport.TLSClientConfig); err != nil {
			return nil, err
		}
	}
	c := &Client{http: &http.Client{Transport: transport}, token: token}
	switch {
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		c.base = "http://forkd"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", u.Path)
		}
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		c.base = u.Scheme + "://" + u.Host + strings.TrimSuffix(u.Path, "/")
	default:
		return nil, fmt.Errorf("daemon address %q: %s", u.Redacted(), want)
	}
	once := transport.Clone()
	once.Protocols = new(http.Protocols)
	once.Protocols.SetHTTP1(true)
	c.upgrades = &http.Client{Transport: once}
	return c, nil
}

// Close drops idle connections.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.upgrades.CloseIdleConnections()
}

// request sends a request. The caller closes the body of a response, which has a status below 300.
func (c *Client) request(ctx context.Context, method, path, contentType string, body io.Reader) (*http.Response, error) {
	header := http.Header{}
	if contentType != "" {
		header.Set("Content-Type", contentType)
	}
	return c.send(ctx, method, path, body, header)
}

// send is request with headers, which it takes over.
func (c *Client) send(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	return c.sendBy(ctx, c.http, method, path, body, header)
}

func (c *Client) sendBy(ctx context.Context, by *http.Client, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	req.Header = c.signed(header)
	resp, err := by.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, apiError(resp)
}

// checkPath refuses a path that a server would take for another one: an empty id would make the
// next part of the path the id.
func checkPath(of string) error {
	of, _, _ = strings.Cut(of, "?")
	if path.Clean(of) != of {
		return fmt.Errorf("%s: an id, tag or name in this path is empty or made of dots", of)
	}
	return nil
}

// signed adds what every request has to its headers.
func (c *Client) signed(h http.Header) http.Header {
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
	h.Set("User-Agent", "forkd-client-go")
	return h
}

// call sends in as JSON, if it is not nil, and decodes the answer into out, if it is not nil.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	contentType := ""
	if in != nil {
		p, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body, contentType = bytes.NewReader(p), "application/json"
	}
	resp, err := c.request(ctx, method, path, contentType, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("%s %s: answer: %w", method, path, err)
	}
	return nil
}

// Healthy returns nil if the daemon answers. It needs no token.
func (c *Client) Healthy(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/healthz", nil, nil)
}

// Version returns the daemon's version.
func (c *Client) Version(ctx context.Context) (v Version, err error) {
	err = c.call(ctx, http.MethodGet, "/version", nil, &v)
	return v, err
}
