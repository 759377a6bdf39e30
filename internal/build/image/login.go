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
	IdentityToken string // exchanged for tokens of images, as Docker's credential helpers return it
	RegistryToken string // sent as it is
}

// String and GoString keep credentials out of messages.
func (Login) String() string   { return "login" }
func (Login) GoString() string { return "login" } //nolint:revive // see String

func (l Login) authenticator() authn.Authenticator {
	return authn.FromConfig(authn.AuthConfig{Username: l.User, Password: l.Password, IdentityToken: l.IdentityToken,
		RegistryToken: l.RegistryToken})
}

// Registry returns the name under which credentials for a registry are kept: "docker.io" and "index.docker.io"
// are the same registry.
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

// StoredLogin returns the credentials that `docker login` or a credential helper of Docker's configuration
// keeps for a registry. ok is false if there are none.
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

// options are those of requests to a registry: with a login, credentials are only sent encrypted, or to this
// host. Without, the credentials that Docker's configuration has are sent as Docker does.
func (l *Login) options() []remote.Option {
	if l == nil {
		return []remote.Option{remote.WithAuthFromKeychain(authn.DefaultKeychain),
			remote.WithTransport(boundedManifests{})}
	}
	return []remote.Option{remote.WithAuth(l.authenticator()), remote.WithTransport(boundedManifests{encrypted: true})}
}

// checkEncrypted refuses a request that would send credentials to another host without TLS. The library
// falls back to that for hosts with a private address.
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
