package image

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
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

func (l Login) authenticator() authn.Authenticator {
	return authn.FromConfig(authn.AuthConfig{Username: l.User, Password: l.Password, IdentityToken: l.IdentityToken,
		RegistryToken: l.RegistryToken})
}

// Registry returns the canonical name of a registry, under which its credentials are kept. For
// example, "docker.io" and "index.docker.io" are the same registry.
func Registry(host string) (string, error) {
	r, err := name.NewRegistry(host)
	if err != nil || host == "" {
		return "", fmt.Errorf("%.200q is not the name of a registry: want HOST or HOST:PORT, such as ghcr.io", host)
	}
	return r.RegistryStr(), nil
}

// RegistryOf returns the registry of an image, or "" if the reference is invalid.
func RegistryOf(reference string) string {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return ""
	}
	return ref.Context().RegistryStr()
}

// StoredLogin returns the credentials for a registry that `docker login` has stored, or that a
// credential helper in Docker's configuration returns. The result ok is false if there are none.
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

// options returns the options for requests to a registry. With a login, its credentials are sent
// only over TLS or to this host. Without a login (nil), credentials in Docker's configuration are
// sent under the same conditions as Docker sends them.
func (l *Login) options() []remote.Option {
	if l == nil {
		return []remote.Option{remote.WithAuthFromKeychain(authn.DefaultKeychain),
			remote.WithTransport(boundedManifests{})}
	}
	return []remote.Option{remote.WithAuth(l.authenticator()), remote.WithTransport(boundedManifests{encrypted: true})}
}

// checkEncrypted refuses a request that would send credentials to another host without TLS. For
// hosts with a private address, the library falls back to requests without TLS.
func checkEncrypted(r *http.Request) error {
	if r.Header.Get("Authorization") == "" || r.URL.Scheme != "http" {
		return nil
	}
	host := r.URL.Hostname()
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("registry %s has no TLS: credentials are not sent to it", r.URL.Host)
}
