// Package front receives all requests to the daemon and routes them. By path it chooses the API
// that answers (packages v1, e2b and ocihttp) or the view (package viewhttp), and by host name it
// chooses a port of a sandbox.
//
// A host name below the daemon's domain belongs to E2B's control plane or to a port of a sandbox. A
// client may reach the port with forkd's own permission or with E2B's tokens.
package front

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/e2b"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/daemon/ocihttp"
	v1 "github.com/forkd/forkd/internal/daemon/v1"
	"github.com/forkd/forkd/internal/daemon/viewhttp"
	"github.com/forkd/forkd/internal/host/hub"
)

// Config holds the handlers to which a Front routes.
type Config struct {
	Face   *face.Face
	E2B    *e2b.Server
	Hub    *hub.Hub       // makes the artifacts of snapshots for other daemons
	V1     http.Handler   // serves all requests that no other field serves
	Domain inbound.Domain // parent domain of the host names of ports; zero: ports have no host names
	Links  *auth.Links    // checks the permissions in such host names; nil without a domain
}

// Front is the handler of all requests to the daemon.
type Front struct {
	Config
	view *viewhttp.View  // never serves a host name of a port or of E2B
	oci  *ocihttp.Server // also never serves such a host name
}

// New returns a Front. Its view calls V1. Its snapshots for other daemons come from Hub.
func New(cfg Config) *Front {
	return &Front{cfg, viewhttp.New(cfg.Face, cfg.V1), ocihttp.New(cfg.Face, cfg.Hub)}
}

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route, permission, below, err := f.Domain.FindHost(r.Host, r.URL)
	switch {
	case below && err == nil && f.E2B.Carries(r, route):
		f.E2B.Carry(w, r, route)
	case !below && f.oci.Serves(r) && !e2b.NamesSandbox(r):
		f.oci.ServeHTTP(w, r)
	case (!below || err != nil && e2b.IsHost(r.Host)) && f.E2B.Serves(r):
		f.E2B.ServeHTTP(w, r)
	case below:
		f.Face.Audited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.port(w, r, route, permission, err)
		})).ServeHTTP(w, r)
	case f.view.Serves(r):
		f.view.ServeHTTP(w, r)
	default:
		f.V1.ServeHTTP(w, r)
	}
}

// port serves a request to a host name of a guest's port. The host name is a separate origin, so
// pages of this origin may send any request to the guest. Requests of these pages to the daemon's
// own API are refused, as for pages of any other origin. If the host name does not name a port, the
// last argument is the error that says so. The path belongs to the guest and may be a secret, so
// the audit log omits it.
func (f *Front) port(w http.ResponseWriter, r *http.Request, route inbound.Route, permission string, unknown error) {
	e := audit.From(r.Context())
	e.Path = "/"
	err := unknown
	switch {
	case unknown != nil:
		err = face.NewError(http.StatusNotFound, "host "+r.Host+": "+unknown.Error())
	case route.Signed:
		e.Who = audit.SignedURL
		if err = f.Links.Check(permission, route.ID, route.Port, time.Now()); err != nil {
			err = face.NewError(http.StatusForbidden, err.Error())
		}
	default:
		r, err = f.mayReach(r, route)
	}
	if unknown == nil {
		e.Route = v1.PortRoute
		e.Host, e.Sandbox = fmt.Sprintf("%d-%s", route.Port, route.ID), route.ID
	}
	if err != nil {
		face.LetGo(w)
		f.Face.FailInbound(w, r, route, err)
		return
	}
	f.Face.CarryHTTP(w, r, route, f.Face.FailInbound)
}

// mayReach checks whether the client of a request may reach the port that the request's host name
// names. It returns the request with its principal in the context.
func (f *Front) mayReach(r *http.Request, route inbound.Route) (*http.Request, error) {
	who, err := f.Face.Guard.Identify(r)
	if scope := (*auth.ScopeError)(nil); errors.As(err, &scope) {
		return r, err
	}
	if err != nil {
		return r, face.NewError(http.StatusUnauthorized, err.Error()+": send it as "+auth.TokenHeader+
			", or ask for a signed URL")
	}
	audit.From(r.Context()).Who = who.Who
	r = r.WithContext(auth.With(r.Context(), who))
	if err := who.Need(v1.PortScope); err != nil {
		return r, err
	}
	return r, f.Face.View(r.Context()).Reach(route.ID)
}
