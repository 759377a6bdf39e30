// Package auth identifies the client of a request. The client determines the rights of the request.
// The package identifies the client by a token, by the user at the other end of the unix socket, or
// by a client certificate. It refuses configurations that would let clients without credentials use
// the daemon from other hosts.
//
// It also signs temporary permissions to reach one port of one sandbox. Packages v1 and e2b decide
// which scope a route requires, and package daemon serves TLS.
package auth

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// errMissing and errInvalid are sent to a refused client.
var (
	errMissing = errors.New("missing bearer token")
	errInvalid = errors.New("invalid bearer token")

	errCertificate = errors.New("missing client certificate")
)

// TokenHeader carries the daemon's token if Authorization is meant for a server in a sandbox.
const TokenHeader = "Forkd-Token"

// presented returns the token of a request: the value of TokenHeader, or else the bearer token of
// Authorization.
func presented(r *http.Request) string {
	if own := r.Header.Get(TokenHeader); own != "" {
		return own
	}
	token, _ := Bearer(r.Header.Get("Authorization"))
	return token
}

// Bearer returns the token in the value of an Authorization header, if it has one.
func Bearer(authorization string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), ok
}

// CheckBind returns an error if other hosts can reach addr (host:port) and clients need no
// credentials. If proven is true, every client must have a token or a certificate.
func CheckBind(addr string, proven bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--bind %q: want host:port: %w", addr, err)
	}
	if proven || IsLoopback(host) {
		return nil
	}
	return fmt.Errorf("--bind %s without --token-file would let anyone who reaches it run code: give a token file (see 'forkd token'), "+
		"let clients have certificates (--tls-client-ca), or bind to 127.0.0.1", addr)
}

// IsLoopback reports whether host is localhost or a loopback address. Other hosts cannot reach such
// an address.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
