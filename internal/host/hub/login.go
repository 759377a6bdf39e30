package hub

import (
	"context"
	"net/url"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/registry"
)

// CheckLogin returns an error if a registry does not accept the credentials. The registry is given
// as HOST or HOST:PORT. Errors refer to the field of the request that names the registry.
func (h *Hub) CheckLogin(ctx context.Context, field, host string, l registry.Login) error {
	reg, err := name.NewRegistry(host)
	if err != nil || host == "" {
		return invalid.Errorf(field, "%.200q: want the name of a registry, HOST or HOST:PORT, such as ghcr.io", host)
	}
	c, err := h.dial(ctx, Remote{ref: reg.Repo("any").Tag("any"), login: &l}) // no request names the repository
	if err != nil {
		return err
	}
	// A registry that issues no tokens has not checked the credentials yet.
	return c.failed(c.again(ctx, func() error {
		resp, err := c.get(ctx, url.URL{Scheme: reg.Scheme(), Host: reg.RegistryStr(), Path: "/v2/"}, "", 0, 0)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}))
}
