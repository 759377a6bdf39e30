// Package client is the Go client of the forkd daemon's REST API (api/openapi.yaml). The forkd CLI
// is built on this package and uses nothing else.
//
// An answer other than success is an *Error, and errors.Is compares the error's code:
// errors.Is(err, client.ErrSandboxNotFound). A wrong argument is an *ArgumentError, returned before
// anything is sent. If the daemon does not answer, the error is a *ConnectionError, which says
// whether anything was sent.
//
// A client keeps no state. It repeats a call only if WithRetries allows that, because after a
// broken connection it is unknown whether the daemon has carried out a call such as a fork.
//
// A family consists of all snapshots and sandboxes that come from one booted VM. Some calls, such
// as Rollback and Diff, need two members of one family.
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
	"path/filepath"
	"strings"
)

// Client calls one daemon. Its methods may be called concurrently. The context of a call bounds its
// time.
type Client struct {
	http     *http.Client
	upgrades *http.Client // HTTP/1.1 only: an HTTP/2 connection cannot be upgraded
	base     string
	address  string // address given to New
	token    string
	retries  int
	user     string // account used for files; empty: the sandbox's default user
}

// Bounds on the daemon's answers, in bytes.
const (
	maxAnswer = 256 << 20
	maxError  = 1 << 20
)

// New returns a client of the daemon at the given address: unix:///path/to/socket, http://host:port
// or https://host:port. The token may be empty.
func New(address, token string, options ...Option) (*Client, error) {
	const want = "want unix:///path, http://host:port or https://host:port"
	u, err := url.Parse(address)
	if err != nil {
		return nil, wrong("url", "%v: %s", err, want)
	}
	set := settings{tls: &tls.Config{MinVersion: tls.VersionTLS12}}
	for _, option := range options {
		if err := option(&set); err != nil {
			return nil, err
		}
	}
	transport := &http.Transport{DisableCompression: true, TLSClientConfig: set.tls}
	c := &Client{http: direct(transport), token: token, address: u.Redacted(), retries: set.retries}
	switch {
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		c.base = "http://forkd"
		if set.private {
			if err := checkSocket(u.Path); err != nil {
				return nil, err
			}
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialSocket(ctx, u.Path, set.private)
		}
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		c.base = u.Scheme + "://" + u.Host + strings.TrimSuffix(u.Path, "/")
	default:
		return nil, wrong("url", "daemon address %q: %s", u.Redacted(), want)
	}
	once := transport.Clone()
	once.Protocols = new(http.Protocols)
	once.Protocols.SetHTTP1(true)
	c.upgrades = direct(once)
	return c, nil
}

// direct returns an HTTP client that follows no redirect. The daemon sends no redirects, and the
// target of a redirect would receive the token and the request.
func direct(rt http.RoundTripper) *http.Client {
	return &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// Address returns the daemon's address as given to New.
func (c *Client) Address() string { return c.address }

// Close drops idle connections.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.upgrades.CloseIdleConnections()
}

// request sends a request. The status of the returned response is below 300. The caller closes the
// response's body.
func (c *Client) request(ctx context.Context, method, path, contentType string, body io.Reader) (*http.Response,
	error) {
	header := http.Header{}
	if contentType != "" {
		header.Set("Content-Type", contentType)
	}
	if method == http.MethodGet && body == nil {
		return c.repeat(ctx, method, header, false, func(header http.Header) (*http.Response, error) {
			return c.send(ctx, method, path, nil, header)
		})
	}
	return c.send(ctx, method, path, body, header)
}

// send is like request, but also sends headers. It takes ownership of header.
func (c *Client) send(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response,
	error) {
	return c.sendBy(ctx, c.http, method, path, body, header)
}

func (c *Client) sendBy(ctx context.Context, by *http.Client, method, path string, body io.Reader,
	header http.Header) (*http.Response, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	ctx, sent := traced(ctx)
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	req.Header = c.signed(header)
	resp, err := by.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, &ConnectionError{Address: c.address, Sent: sent.Load(), Err: err}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, apiError(resp)
}

// signed adds the headers of every request, such as the token.
func (c *Client) signed(h http.Header) http.Header {
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
	h.Set("User-Agent", "forkd-client-go")
	return h
}

// call(…, in, out) sends the JSON of in, and decodes the answer into *out. If in is nil, call sends
// no body. If out is nil, call does not decode the answer.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var p []byte
	header := http.Header{}
	if in != nil {
		var err error
		if p, err = json.Marshal(in); err != nil {
			return err
		}
		header.Set("Content-Type", "application/json")
	}
	resp, err := c.repeat(ctx, method, header, canRepeat(method, path), func(header http.Header) (*http.Response, error) {
		return c.send(ctx, method, path, bytes.NewReader(p), header)
	})
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
