// Package registry holds the rules that all clients of OCI registries in forkd share: what
// credentials are, where Docker keeps credentials and certificates, and to which servers
// credentials may be sent.
//
// It sends no requests. Package image pulls container images, and package hub pushes and pulls
// snapshots.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Login holds credentials for a registry: a user with a password, or a token.
type Login struct {
	User          string
	Password      string
	IdentityToken string // as Docker's credential helpers return it; exchanged for access tokens
	RegistryToken string // bearer token, sent unchanged
}

// String and GoString keep credentials out of messages.
func (Login) String() string   { return "login" }
func (Login) GoString() string { return "login" } //nolint:revive // see String

// Authenticator returns the credentials for go-containerregistry.
func (l Login) Authenticator() authn.Authenticator {
	return authn.FromConfig(authn.AuthConfig{Username: l.User, Password: l.Password, IdentityToken: l.IdentityToken,
		RegistryToken: l.RegistryToken})
}

// Name returns the canonical name of a registry, under which its credentials are kept. For
// example, "docker.io" and "index.docker.io" are the same registry.
func Name(host string) (string, error) {
	r, err := name.NewRegistry(host)
	if err != nil || host == "" {
		return "", fmt.Errorf("%.200q is not the name of a registry: want HOST or HOST:PORT, such as ghcr.io", host)
	}
	return r.RegistryStr(), nil
}

// Of returns the registry of an image, or "" if the reference is invalid.
func Of(reference string) string {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return ""
	}
	return ref.Context().RegistryStr()
}

// StoredLogin returns a registry's credentials, as `docker login` has stored them, or as a
// credential helper in Docker's configuration returns them. If there are no credentials, it returns
// false.
func StoredLogin(ctx context.Context, host string) (l Login, ok bool, err error) {
	r, err := name.NewRegistry(host)
	if err != nil {
		return l, false, err
	}
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, r)
	if err != nil || auth == authn.Anonymous {
		return l, false, err
	}
	c, err := authn.Authorization(ctx, auth)
	if err != nil {
		return l, false, err
	}
	l = Login{User: c.Username, Password: c.Password, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken}
	return l, l != Login{}, nil
}

// Check refuses requests that a registry must not cause. Clients of a registry call it for each
// request, including requests after a redirect. The parameter home is the registry, as HOST or
// HOST:PORT.
//
//   - Credentials go to other hosts only with TLS. For private addresses, go-containerregistry falls
//     back to requests without TLS. The body of a POST can have a credential too.
//   - A redirect to another server does not repeat a POST.
//   - A registry on another host cannot lead a client to a server on this host. Check need not
//     resolve names for this: a name that resolves to this host fails in TLS, because servers on
//     this host have no certificate for it.
func Check(r *http.Request, home string) error {
	host, isPost := r.URL.Hostname(), r.Method == http.MethodPost
	from := r.Response // nil, or the redirect that has caused r
	switch {
	case r.URL.Scheme == "http" && !IsLoopback(host) && (isPost || r.Header.Get("Authorization") != ""):
		return fmt.Errorf("registry %s has no TLS: credentials are not sent to it", r.URL.Host)
	case isPost && from != nil && r.URL.Host != from.Request.URL.Host:
		return errors.New("it redirects a POST to another server")
	case IsLoopback(host) && !IsLoopback((&url.URL{Host: home}).Hostname()):
		return fmt.Errorf("it leads to %s, a server on this host", r.URL.Host)
	}
	return nil
}

// IsLoopback reports whether a host name means this host. It asks no name server.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Bound returns a body that fails when more than limit bytes are read. The error refers to the body
// by the given name.
func Bound(body io.ReadCloser, what string, limit int64) io.ReadCloser {
	return &bounded{body, what, limit, limit}
}

type bounded struct {
	io.ReadCloser
	what        string
	limit, left int64 // bytes
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the registry's %s has more than %d bytes", b.what, b.limit)
	}
	return n, err
}
