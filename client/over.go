package client

import "net/http"

// Over returns a client whose requests are carried by rt instead of a connection to an address. It
// sends no token; rt may add one. Methods that need an upgrade, such as StartExec and DialPort,
// work if rt supports upgrades.
func Over(rt http.RoundTripper) *Client {
	c := direct(rt)
	return &Client{http: c, upgrades: c, base: "http://forkd"}
}
