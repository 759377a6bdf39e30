package auth

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// CheckHost reports whether a request's Host header names a daemon that requires no token:
// localhost, a loopback address, or one of allowed, with any port. Any other name could belong to a
// web page whose name was made to resolve to this host after the browser loaded it (DNS rebinding).
// For the browser, such a page and the daemon have the same origin.
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
