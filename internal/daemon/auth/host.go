package auth

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// CheckHost reports whether a request's Host header names a daemon that demands no token:
// localhost, a loopback address, or one of allowed, whatever the port. Any other name may be that
// of a web page that was made to resolve to this host after the browser had loaded it: to the
// browser such a page and the daemon are of one origin.
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
