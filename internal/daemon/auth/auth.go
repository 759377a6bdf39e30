// Package auth protects the daemon's API with one bearer token and refuses configurations that
// would leave it open.
//
// Beyond that it signs permissions to reach one port of one sandbox for a while. There are no users
// or roles: whoever has the token may do everything. TLS is not terminated here.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
)

// minToken is the shortest token that is accepted, in bytes.
const minToken = 16

// Token is a bearer token. The zero Token lets every request pass.
type Token struct {
	digest [sha256.Size]byte
	set    bool
}

// Load reads a token file: one line, white space around it ignored.
func Load(path string) (Token, error) {
	p, err := os.ReadFile(path)
	if err != nil {
		return Token{}, fmt.Errorf("read token file: %w", err)
	}
	t, err := Parse(strings.TrimSpace(string(p)))
	if err != nil {
		return t, fmt.Errorf("token file %s: %w", path, err)
	}
	return t, nil
}

// Parse checks a token.
func Parse(token string) (Token, error) {
	switch {
	case len(token) < minToken:
		return Token{}, fmt.Errorf("token of %d bytes: want at least %d (for example from 'openssl rand -hex 32')", len(token), minToken)
	case strings.HasPrefix(token, "REPLACE_ME"), strings.HasPrefix(token, "CHANGE_ME"):
		return Token{}, errors.New("token is a placeholder: put a random one there")
	case strings.ContainsAny(token, " \t\r\n"):
		return Token{}, errors.New("token contains white space")
	}
	return Token{digest: sha256.Sum256([]byte(token)), set: true}, nil
}

// IsSet reports whether t demands anything.
func (t Token) IsSet() bool { return t.set }

// errMissing and errInvalid are what a refused client is told.
var (
	errMissing = errors.New("missing bearer token")
	errInvalid = errors.New("invalid bearer token")
)

// TokenHeader carries the token where Authorization is meant for somebody else: a server in a
// sandbox.
const TokenHeader = "Forkd-Token"

// Check reports whether a request has the token, in TokenHeader or else in Authorization.
func (t Token) Check(r *http.Request) error {
	if !t.set {
		return nil
	}
	if own := r.Header.Get(TokenHeader); own != "" {
		if !t.Is(own) {
			return errInvalid
		}
		return nil
	}
	got, ok := Bearer(r.Header.Get("Authorization"))
	if !ok {
		return errMissing
	}
	if !t.Is(got) {
		return errInvalid
	}
	return nil
}

// Bearer returns the token in the value of an Authorization header, if it has one.
func Bearer(authorization string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(authorization, " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "Bearer")
}

// Is reports whether got is the token. It takes the same time for every wrong one of every length:
// only digests are compared.
func (t Token) Is(got string) bool {
	sum := sha256.Sum256([]byte(got))
	return t.set && subtle.ConstantTimeCompare(sum[:], t.digest[:]) == 1
}

// CheckBind refuses to serve TCP beyond this host without a token. addr is host:port.
func CheckBind(addr string, t Token) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--bind %q: want host:port: %w", addr, err)
	}
	if t.set || host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--bind %s without --token-file would let everybody who reaches it run code: give a token file, or bind to 127.0.0.1", addr)
}
