package auth

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// CheckHost returns an error if the Host header of a request is not localhost, a loopback address
// or one of the allowed names. It accepts any port. Daemons that require no token use this check
// against DNS rebinding: a web page could make its own domain name resolve to this host after the
// browser has loaded the page. The browser would then treat the page and the daemon as the same
// origin.
func CheckHost(header string, allowed []string) error {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if IsLoopback(host) {
		return nil
	}
	if slices.ContainsFunc(allowed, func(name string) bool { return strings.EqualFold(name, host) }) {
		return nil
	}
	return fmt.Errorf("host %q: want localhost or a loopback address; allow other names with --allow-host, or use a token",
		header)
}
