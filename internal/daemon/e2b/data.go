package e2b

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Headers of requests to sandboxes.
const (
	idHeader      = "E2b-Sandbox-Id"
	portHeader    = "E2b-Sandbox-Port"
	accessHeader  = "X-Access-Token"
	trafficHeader = "E2b-Traffic-Access-Token"
	keyHeader     = "X-Api-Key" // of the control plane
)

// defaultUser is whom requests are for that name nobody, in images that have the account.
const defaultUser = "user"

// isAgentPort reports whether a port is a service of the agent's. A server of the guest's own at
// the same port cannot be reached from outside.
func isAgentPort(port uint16) bool {
	return port == agentproto.EnvdPort || port == agentproto.CodeInterpreterPort
}

// Carries reports whether a route of a host name is for this package: the agent's services, and
// ports of sandboxes that were made here. Whoever comes with forkd's own permission needs none of
// E2B's.
func (a *Server) Carries(r *http.Request, route inbound.Route) bool {
	switch {
	case route.Signed:
		return false
	case isAgentPort(route.Port):
		return true
	}
	return r.Header.Get(auth.TokenHeader) == "" && a.isOwn(route.ID)
}

// sharedRoute returns what a request names by its headers to an address that all sandboxes share.
// What it names may not be there: then the id is empty, or the port 0.
func sharedRoute(r *http.Request) inbound.Route {
	route := inbound.Route{ID: r.Header.Get(idHeader), Port: agentproto.EnvdPort, Path: r.URL.EscapedPath(), Shared: true}
	if text := r.Header.Get(portHeader); text != "" && route.ID != "" {
		route.Port, _ = inbound.ParsePort(text)
	}
	route.Agent = isAgentPort(route.Port)
	return route
}

// isOwn reports whether a sandbox was made by this package, and so by E2B's rules for its ports.
// One that is not there counts as such: clients of E2B must learn that it has gone.
func (a *Server) isOwn(id string) bool {
	i, err := a.Face.Host.Permitted(id).Sandbox(id)
	if err != nil {
		return true
	}
	_, own := annotationOf(i)
	return own
}

// sharedData carries a request to the sandbox that it names to an address that all share: by its
// headers, or, as a signed URL to a file, only by its signature.
func (a *Server) sharedData(w http.ResponseWriter, r *http.Request) {
	route := sharedRoute(r)
	if route.ID == "" {
		var err error
		if route.ID, err = a.signer(r); err != nil {
			audit.From(r.Context()).Route = dataRoute
			route.Open = true
			a.failData(w, r, route, err)
			return
		}
	}
	a.data(w, r, route)
}

// data carries a request to a sandbox.
func (a *Server) data(w http.ResponseWriter, r *http.Request, route inbound.Route) {
	e := audit.From(r.Context())
	e.Route = dataRoute
	if vmpool.IsID(route.ID) { // else a stranger would write what he likes into the log
		e.Sandbox, e.Host = route.ID, fmt.Sprintf("%d-%s", route.Port, route.ID)
	}
	if !route.Agent {
		e.Path = "/" // what follows is the guest's business
	}
	route.Open = a.isStranger(r, route)
	i, err := get(a.Face.Host.Permitted(route.ID), route.ID)
	switch {
	case route.ID == "":
		err = face.NewError(http.StatusUnauthorized, "signature is missing or wrong")
	case route.Port == 0:
		err = face.BadRequest("%s: want a number from 1 to 65535", portHeader)
	}
	if err != nil {
		a.failData(w, r, route, err)
		return
	}
	if err := a.permit(r, route, i); err != nil {
		a.failData(w, r, route, err)
		return
	}
	isHealth := route.Agent && path.Clean("/"+r.URL.Path) == "/health" // open to all
	switch {
	case !route.Open:
		e.Who = "e2b-token"
	case route.Agent && !isHealth:
		e.Who = audit.SignedURL
	}
	if route.Open && isHealth && i.IdleTimeout > 0 {
		a.healthOfIdle(w, r, route, i)
		return
	}
	if n, _ := annotationOf(i); n.Resumes && isAsleep(i) && !(route.Open && isHealth) {
		if err := a.wake(r.Context(), i, n, route.Open); err != nil {
			a.failData(w, r, route, err)
			return
		}
	}
	if a.Keys.Is(accessToken, i.ID, r.Header.Get(accessHeader)) { // else it is for the guest's own server
		r.Header.Del(accessHeader)
	}
	for _, name := range []string{idHeader, portHeader, trafficHeader} {
		r.Header.Del(name)
	}
	if route.Port == agentproto.EnvdPort {
		r.Header.Set(agentproto.DefaultUserHeader, defaultUser)
	}
	a.Face.CarryHTTP(w, r, route, a.failData)
}

// healthOfIdle answers a stranger for a sandbox that is suspended when it is idle, by its state: a
// request to its agent would bring it back, or keep it from being idle, for which others need a token.
func (a *Server) healthOfIdle(w http.ResponseWriter, r *http.Request, route inbound.Route, i sandbox.Info) {
	if i.State != sandbox.Running {
		a.failData(w, r, route, &sandbox.StateError{ID: i.ID, Op: "reach", State: i.State})
		return
	}
	if route.Port == agentproto.CodeInterpreterPort { // as its services do
		_, _ = io.WriteString(w, "OK") // the client has gone if this fails
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// isStranger reports whether a request has none of the tokens of its sandbox.
func (a *Server) isStranger(r *http.Request, route inbound.Route) bool {
	return !a.Keys.Is(accessToken, route.ID, r.Header.Get(accessHeader)) &&
		!a.Keys.Is(trafficToken, route.ID, r.Header.Get(trafficHeader))
}

// permit checks the tokens of a request to a sandbox.
func (a *Server) permit(r *http.Request, route inbound.Route, i sandbox.Info) error {
	access := a.Keys.Is(accessToken, i.ID, r.Header.Get(accessHeader))
	traffic := a.Keys.Is(trafficToken, i.ID, r.Header.Get(trafficHeader))
	at := path.Clean("/" + r.URL.Path)
	switch route.Port {
	case agentproto.EnvdPort:
		switch {
		case at == "/init":
			return face.NewError(http.StatusNotFound, "/init is the daemon's")
		case at == "/health", access:
			return nil
		case at == "/files" && r.Header.Get(accessHeader) == "":
			return a.checkSignature(r, i.ID)
		}
		return face.NewError(http.StatusUnauthorized,
			"X-Access-Token is missing or wrong: use the envdAccessToken that create and connect return")
	case agentproto.CodeInterpreterPort:
		if access || traffic || at == "/health" {
			return nil
		}
		return face.NewError(http.StatusUnauthorized,
			"X-Access-Token is missing or wrong: use the envdAccessToken that create and connect return")
	}
	if n, own := annotationOf(i); traffic || own && !n.Private {
		return nil
	}
	return face.NewError(http.StatusForbidden,
		"E2B-Traffic-Access-Token is missing or wrong: use the trafficAccessToken that create and connect return")
}

// isAsleep reports whether a sandbox is suspended, or in a state that it has on the way there and
// back. Those are also of sandboxes that an operator has paused, or is rolling back.
func isAsleep(i sandbox.Info) bool {
	return i.State == sandbox.Suspended || i.State == sandbox.Paused || i.State == sandbox.Restoring
}

// wake brings a paused sandbox back for a request, and gives it the time that it was created with.
// That costs far more than a request to one that runs, so strangers have it counted once more.
func (a *Server) wake(ctx context.Context, i sandbox.Info, n annotation, stranger bool) error {
	if stranger {
		if err := a.Face.Strangers.Enter(i.ID, i.Owner); err != nil {
			return err
		}
	}
	leave, err := a.wakes.enter(i.ID, i.Owner, stranger)
	if err != nil {
		return err
	}
	defer leave()
	return a.Face.Host.Permitted(i.ID).With(ctx, i.ID, func(h *sandbox.Held) error {
		i := h.Info()
		if i.State != sandbox.Suspended { // one that an operator has paused stays so
			return nil
		}
		return h.Resume(ctx, &sandbox.Expiry{At: time.Now().Add(n.Timeout), Suspends: i.ExpirySuspends})
	})
}

// goneBody is what E2B's proxy says of a sandbox or a port that cannot be reached.
type goneBody struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      uint16 `json:"port,omitempty"`
	Code      int    `json:"code"`
}

// failData answers a request that did not reach its sandbox. The SDKs take 502, and only that, for
// a sandbox that is gone. It logs nothing: guests and strangers could fill the log.
func (a *Server) failData(w http.ResponseWriter, r *http.Request, route inbound.Route, err error) {
	if r.ContentLength != 0 || route.Open {
		face.LetGo(w)
	}
	var (
		unknown *sandbox.NotFoundError
		state   *sandbox.StateError
		cut     *sandbox.CutOffError
		refused *agentclient.Error
	)
	switch {
	case errors.As(err, &unknown), errors.As(err, &state), errors.As(err, &cut):
		_ = writeJSON(w, http.StatusBadGateway, goneBody{SandboxID: route.ID, Message: "The sandbox was not found",
			Code: http.StatusBadGateway})
	case errors.As(err, &refused) && refused.Code == agentclient.CodeRefused:
		_ = writeJSON(w, http.StatusBadGateway, goneBody{SandboxID: route.ID,
			Message: "The sandbox is running but port is not open", Port: route.Port, Code: http.StatusBadGateway})
	case strings.HasPrefix(r.URL.Path, "/execute"), strings.HasPrefix(r.URL.Path, "/contexts"):
		http.Error(w, fmt.Sprint(err), bodyOf(err).Code) // the code interpreter's errors are text
	default:
		writeError(w, err)
	}
}
