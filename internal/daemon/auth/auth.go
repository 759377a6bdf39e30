// Package auth says who makes a request of the daemon and what they may do: by tokens, by the user
// at the other end of the unix socket, or by a client certificate. It refuses configurations that
// would leave the daemon open.
//
// Beyond that it signs permissions to reach one port of one sandbox for a while. Which scope a
// route wants is for the daemon's faces to say, and TLS itself is the daemon's.
package auth

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// errMissing and errInvalid are what a refused client is told.
var (
	errMissing = errors.New("missing bearer token")
	errInvalid = errors.New("invalid bearer token")

	errCertificate = errors.New("missing client certificate")
)

// TokenHeader carries the token where Authorization is meant for somebody else: a server in a
// sandbox.
const TokenHeader = "Forkd-Token"

// presented returns the token that a request has, in TokenHeader or else in Authorization.
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

// CheckBind refuses to serve TCP beyond this host to clients that prove nothing. addr is host:port;
// proven says that each of them must have a token or a certificate.
func CheckBind(addr string, proven bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--bind %q: want host:port: %w", addr, err)
	}
	if proven || IsLoopback(host) {
		return nil
	}
	return fmt.Errorf("--bind %s without --token-file would let everybody who reaches it run code: give a token file (see 'forkd token'), "+
		"let clients have certificates (--tls-client-ca), or bind to 127.0.0.1", addr)
}

// IsLoopback reports whether a host, a name or an address, is only reached from this one.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
