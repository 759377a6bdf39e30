package v1

import (
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/host/invalid"
)

// byPath returns a handler that serves a request if its path names a port of a guest. The handler
// passes every other request to next.
func (a *api) byPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route, ok := inbound.FindPath(r.URL)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		err := auth.From(r.Context()).Need(PortScope)
		if err == nil {
			err = a.view(r).Reach(route.ID)
		}
		if err != nil {
			a.Face.FailInbound(w, r, route, err)
			return
		}
		a.Face.CarryHTTP(w, r, route, a.Face.FailInbound)
	})
}

// tcpPort carries bytes to a port of a guest.
func (a *api) tcpPort(w http.ResponseWriter, r *http.Request) error {
	port, err := portOf(r)
	if err != nil {
		return err
	}
	a.Face.CarryTCP(w, r, inbound.Route{ID: r.PathValue("id"), Port: port})
	return nil
}

func portOf(r *http.Request) (uint16, error) {
	port, err := inbound.ParsePort(r.PathValue("port"))
	if err != nil {
		return 0, invalid.Errorf("port", "%q: want a number from 1 to 65535", r.PathValue("port"))
	}
	return port, nil
}

// Lifetime of a signed URL.
const (
	defaultLink = time.Hour
	maxLink     = 30 * 24 * time.Hour
)

// signPort answers with a URL that gives anyone who holds it temporary access to a port of a guest.
func (a *api) signPort(r *http.Request, req *apiv1.PortURLRequest) (out apiv1.PortURL, err error) {
	port, err := portOf(r)
	if err != nil {
		return out, err
	}
	ttl, err := face.Seconds("ttl_secs", req.TTLSecs, defaultLink, maxLink)
	if err != nil {
		return out, err
	}
	id := r.PathValue("id")
	if _, err := a.view(r).Sandbox(id); err != nil {
		return out, err
	}
	if !a.Domain.IsSet() {
		return out, face.NewError(http.StatusConflict,
			"the daemon has no domain for URLs of sandboxes: start it with --proxy-domain")
	}
	expires := time.Now().Add(ttl)
	url := a.Domain.URL(id, port, a.Links.Sign(id, port, expires))
	return apiv1.PortURL{URL: url, ExpiresAt: expires.Unix()}, nil
}
