package client

import (
	"net/http"
	"net/url"
)

// Over returns a client that sends its requests with rt instead of connecting to an address. It
// adds no token, but rt may add one. Methods that need an upgrade, such as StartExec and DialPort,
// work if rt supports upgrades.
func Over(rt http.RoundTripper) *Client {
	c := direct(rt)
	return &Client{http: c, upgrades: c, base: "http://forkd"}
}

// Transport returns a RoundTripper that sends requests to the daemon with the client's
// credentials. Only the path and the query of a request's URL are used. A request with the header
// Upgrade may become a connection, as in package net/http.
func (c *Client) Transport() http.RoundTripper { return transport{c} }

type transport struct{ c *Client }

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base, err := url.Parse(t.c.base)
	if err != nil {
		return nil, err
	}
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host, out.Host = base.Scheme, base.Host, base.Host
	if base.Path != "" {
		out.URL.Path, out.URL.RawPath = base.Path+req.URL.Path, ""
	}
	out.Header = t.c.signed(out.Header)
	by := t.c.http
	if req.Header.Get("Upgrade") != "" {
		by = t.c.upgrades
	}
	return by.Transport.RoundTrip(out)
}
