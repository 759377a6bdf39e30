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

// Headers of requests that go to sandboxes.
const (
	idHeader      = "E2b-Sandbox-Id"
	portHeader    = "E2b-Sandbox-Port"
	accessHeader  = "X-Access-Token"
	trafficHeader = "E2b-Traffic-Access-Token"
	keyHeader     = "X-Api-Key" // header of requests to the control plane
)

// defaultUser is the account used for requests that name no user, if the image has it.
const defaultUser = "user"

// isAgentPort reports whether a port is served by the agent. If a server of the guest listens on
// the same port, that server cannot be reached from outside.
func isAgentPort(port uint16) bool {
	return port == agentproto.EnvdPort || port == agentproto.CodeInterpreterPort
}

// Carries reports whether this package handles a request by its host name. It handles the agent's
// services, and the ports of sandboxes made by this package. If the client has forkd's own
// permission, package front handles the request, and the client needs no token of E2B.
func (a *Server) Carries(r *http.Request, route inbound.Route) bool {
	switch {
	case route.Signed:
		return false
	case isAgentPort(route.Port):
		return true
	}
	return r.Header.Get(auth.TokenHeader) == "" && a.isOwn(route.ID)
}

// sharedRoute returns the route that the headers of a request name. It is for requests at an
// address that all sandboxes share. If the header with the id is missing, the id is empty. If the
// header with the port is missing, the port is the port of envd. If the header with the port is
// invalid, the port is 0.
func sharedRoute(r *http.Request) inbound.Route {
	route := inbound.Route{ID: r.Header.Get(idHeader), Port: agentproto.EnvdPort, Path: r.URL.EscapedPath(), Shared: true}
	if text := r.Header.Get(portHeader); text != "" && route.ID != "" {
		route.Port, _ = inbound.ParsePort(text)
	}
	route.Agent = isAgentPort(route.Port)
	return route
}

// isOwn reports whether E2B's rules apply to the ports of a sandbox, because this package made the
// sandbox. For a sandbox that does not exist, isOwn returns true. So clients of E2B get E2B's
// answer for a missing sandbox.
func (a *Server) isOwn(id string) bool {
	i, err := a.Face.Host.Permitted(id).Sandbox(id)
	if err != nil {
		return true
	}
	_, own := annotationOf(i)
	return own
}

// sharedData carries a request that arrived at an address that all sandboxes share. The sandbox is
// named by headers, or by the signature of a signed URL to a file.
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
	if vmpool.IsID(route.ID) { // without this check, a stranger could write any text into the log
		e.Sandbox, e.Host = route.ID, fmt.Sprintf("%d-%s", route.Port, route.ID)
	}
	if !route.Agent {
		e.Path = "/" // the rest of the path belongs to the guest
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
	isHealth := route.Agent && isHealthCheck(r)
	switch {
	case !route.Open:
		auth.Identified(r.Context(), i.Owner)
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
	if a.Keys.Is(accessToken, i.ID, r.Header.Get(accessHeader)) { // any other token is for the guest's own server
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

// healthOfIdle answers a health check without a token for a sandbox that is suspended when idle.
// The answer depends only on the sandbox's state. A request to the agent would resume the sandbox
// or keep it from becoming idle, and only clients with a token may do that.
func (a *Server) healthOfIdle(w http.ResponseWriter, r *http.Request, route inbound.Route, i sandbox.Info) {
	if i.State != sandbox.Running {
		a.failData(w, r, route, &sandbox.StateError{ID: i.ID, Op: "reach", State: i.State})
		return
	}
	if route.Port == agentproto.CodeInterpreterPort { // answer like the code interpreter's server
		_, _ = io.WriteString(w, "OK") // fails only if the client has left
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// isHealthCheck reports whether a request to an agent is a health check, which needs no token. It
// compares the escaped path, because that path is sent to the agent.
func isHealthCheck(r *http.Request) bool { return r.URL.EscapedPath() == "/health" }

// isStranger reports whether a request has neither of its sandbox's tokens. In this package, the
// client of such a request is called a stranger.
func (a *Server) isStranger(r *http.Request, route inbound.Route) bool {
	return !a.Keys.Is(accessToken, route.ID, r.Header.Get(accessHeader)) &&
		!a.Keys.Is(trafficToken, route.ID, r.Header.Get(trafficHeader))
}

// permit returns an error if a port requires a token of the sandbox, and the request lacks this
// token.
func (a *Server) permit(r *http.Request, route inbound.Route, i sandbox.Info) error {
	access := a.Keys.Is(accessToken, i.ID, r.Header.Get(accessHeader))
	traffic := a.Keys.Is(trafficToken, i.ID, r.Header.Get(trafficHeader))
	switch route.Port {
	case agentproto.EnvdPort:
		switch {
		case path.Clean("/"+r.URL.Path) == "/init": // also matches other forms of the path, because the request is refused
			return face.NewError(http.StatusNotFound, "/init is the daemon's")
		case isHealthCheck(r), access:
			return nil
		case r.URL.EscapedPath() == "/files" && r.Header.Get(accessHeader) == "":
			return a.checkSignature(r, i.ID)
		}
		return face.NewError(http.StatusUnauthorized,
			"X-Access-Token is missing or wrong: use the envdAccessToken that create and connect return")
	case agentproto.CodeInterpreterPort:
		if access || traffic || isHealthCheck(r) {
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

// isAsleep reports whether a sandbox is suspended, being suspended or being resumed. It also
// returns true if an operator has paused the sandbox, or if the sandbox is being rolled back: the
// states Paused and Restoring do not tell these cases apart.
func isAsleep(i sandbox.Info) bool {
	return i.State == sandbox.Suspended || i.State == sandbox.Paused || i.State == sandbox.Restoring
}

// wake resumes a suspended sandbox for a request and gives the sandbox the same timeout as at its
// creation. A resumption costs far more than a request to a running sandbox, so a stranger's
// request counts a second time against the rate limit.
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
		if i.State != sandbox.Suspended { // a paused sandbox stays paused, because an operator paused it
			return nil
		}
		return h.Resume(ctx, &sandbox.Expiry{At: time.Now().Add(n.Timeout), Suspends: i.ExpirySuspends})
	})
}

// goneBody is the answer of E2B's proxy for a sandbox or a port that cannot be reached.
type goneBody struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      uint16 `json:"port,omitempty"`
	Code      int    `json:"code"`
}

// failData answers a request that did not reach its sandbox. For the SDKs, only status 502 means
// that the sandbox is missing. failData logs nothing, because guests and strangers could fill the
// log.
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
		_ = face.WriteJSON(w, r, http.StatusBadGateway, goneBody{SandboxID: route.ID, Message: "The sandbox was not found",
			Code: http.StatusBadGateway})
	case errors.As(err, &refused) && refused.Code == agentclient.CodeRefused:
		_ = face.WriteJSON(w, r, http.StatusBadGateway, goneBody{SandboxID: route.ID,
			Message: "The sandbox is running but port is not open", Port: route.Port, Code: http.StatusBadGateway})
	case strings.HasPrefix(r.URL.Path, "/execute"), strings.HasPrefix(r.URL.Path, "/contexts"):
		http.Error(w, fmt.Sprint(err), bodyOf(err).Code) // clients of the code interpreter expect errors as plain text
	default:
		writeError(w, err)
	}
}
