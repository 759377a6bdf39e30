package client

import "net/http"

// Over returns a client that sends its requests with rt instead of connecting to an address. It
// adds no token, but rt may. Methods that need an upgrade, such as StartExec and DialPort, work if
// rt supports upgrades.
func Over(rt http.RoundTripper) *Client {
	c := direct(rt)
	return &Client{http: c, upgrades: c, base: "http://forkd"}
}
