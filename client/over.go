package client

import "net/http"

// Over returns a client whose requests are carried by rt, in place of a connection to an address. It
// sends no token: what rt adds to a request is its own business. Methods that need an upgrade, such
// as StartExec and DialPort, work if rt supports them.
func Over(rt http.RoundTripper) *Client {
	c := &http.Client{Transport: rt}
	return &Client{http: c, upgrades: c, base: "http://forkd"}
}
