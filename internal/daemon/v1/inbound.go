package v1

import (
	"context"
	"errors"
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Streams counts streams to ports of guests. kind is "http" or "tcp".
type Streams interface {
	StreamBegun()
	StreamEnded(kind, outcome string, took time.Duration)
}

// Outcomes of streams.
const (
	outcomeOK      = "ok"
	outcomeRefused = "refused" // nothing listens there, or there are too many streams, or too often
	outcomeState   = "state"   // the sandbox is not there, or does not run
	outcomeCut     = "cut"     // the sandbox was deleted, suspended or rolled back meanwhile
	outcomeClient  = "client"  // the client left
	outcomeFailed  = "failed"  // anything else, such as an answer that is not HTTP
)

func outcomeOf(r *http.Request, err error) string {
	var (
		cut     *sandbox.CutOffError
		state   *sandbox.StateError
		unknown *sandbox.NotFoundError
		guest   *agentclient.Error
	)
	switch {
	case err == nil:
		return outcomeOK
	case errors.As(err, &cut):
		return outcomeCut
	case errors.As(err, &state), errors.As(err, &unknown):
		return outcomeState
	case errors.Is(err, face.ErrTooMany), errors.Is(err, face.ErrTooOften), errors.As(err, &guest) &&
		guest.Code != agentclient.CodeInternal:
		return outcomeRefused
	case r.Context().Err() != nil:
		return outcomeClient
	}
	return outcomeFailed
}

// carrier carries a stream over connections that dial makes. See inbound.Proxy for what it returns.
type carrier func(w http.ResponseWriter, r *http.Request, dial inbound.Dial) (answered bool, err error)

// carry counts a stream to a port and lets c carry it. The sandbox is in use as long as that lasts.
func (a *api) carry(w http.ResponseWriter, r *http.Request, kind string, route inbound.Route, c carrier, fail Fail) {
	answered, err := a.useStream(w, r, kind, route, c)
	switch {
	case err == nil:
	case answered:
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	default:
		fail(w, r, route, err)
	}
}

func (a *api) useStream(w http.ResponseWriter, r *http.Request, kind string, route inbound.Route,
	c carrier) (answered bool, err error) {
	a.Streams.StreamBegun()
	begun := time.Now()
	defer func() { a.Streams.StreamEnded(kind, outcomeOf(r, err), time.Since(begun)) }()
	g := a.Face.Streams
	switch {
	case route.Signed, route.Open: // also where they reach the agent: others need its places
		g = a.Face.Signed
	case route.Agent:
		g = a.Face.Guests
	}
	if route.Signed || route.Open {
		if err := a.Face.Strangers.Enter(route.ID, a.ownerOf(route.ID)); err != nil {
			return false, err
		}
	}
	leave, err := g.Enter(a.clientOf(r, route.ID), route.ID)
	if err != nil {
		return false, err
	}
	defer leave()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.Stopping, cancel)()
	err = a.Manager.Use(ctx, route.ID, "reach a port of", func(ctx context.Context,
		dial agentclient.DialFunc) (err error) {
		guest := agentclient.New(dial)
		answered, err = c(w, r.WithContext(ctx), func(ctx context.Context) (agentclient.PortConn, error) {
			ctx, cancel := context.WithTimeout(ctx, maxDial)
			defer cancel()
			if route.Agent {
				return guest.DialService(ctx, uint32(route.Port))
			}
			return guest.DialPort(ctx, route.Port)
		})
		return err
	})
	return answered, err
}

// maxDial bounds how long an agent may take to connect: it tries two addresses.
const maxDial = 30 * time.Second

// failInbound answers where a guest's own answer is expected, and marks the difference. It logs
// nothing: guests could fill the log.
func (a *api) failInbound(w http.ResponseWriter, r *http.Request, _ inbound.Route, err error) {
	if r.ContentLength != 0 || errors.Is(err, face.ErrTooOften) {
		LetGo(w) // who comes with a signed URL is a stranger too
	}
	w.Header().Set(inbound.ErrorHeader, "true")
	w.Header().Set(audit.RequestIDHeader, audit.From(r.Context()).RequestID)
	writeProblem(w, err)
}

// byPath serves ports of guests below the API's own paths, and everything else with next.
func (a *api) byPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route, ok := inbound.FindPath(r.URL)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		err := auth.From(r.Context()).Need(portScope)
		if err == nil {
			err = a.Manager.Reach(r.Context(), route.ID)
		}
		if err != nil {
			a.failInbound(w, r, route, err)
			return
		}
		a.carryHTTP(w, r, route, a.failInbound)
	})
}

func (a *api) carryHTTP(w http.ResponseWriter, r *http.Request, route inbound.Route, fail Fail) {
	w.Header().Del(audit.RequestIDHeader) // the guest may have one of its own
	a.carry(w, r, "http", route, func(w http.ResponseWriter, r *http.Request, dial inbound.Dial) (bool, error) {
		return a.proxy.HTTP(w, r, route, dial)
	}, fail)
}

// byHost serves ports of guests that have host names of their own, and everything else with next.
// Such a host is an origin of its own, so what its pages may ask of it is for the guest to say;
// what they ask of the daemon is refused like the requests of any other page.
func (a *api) byHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route, permission, below, err := a.Domain.FindHost(r.Host, r.URL)
		if !below {
			next.ServeHTTP(w, r)
			return
		}
		switch {
		case err != nil:
			err = face.NewError(http.StatusNotFound, "host "+r.Host+": "+err.Error())
		case route.Signed:
			audit.From(r.Context()).Who = audit.SignedURL
			if err = a.Links.Check(permission, route.ID, route.Port, time.Now()); err != nil {
				err = face.NewError(http.StatusForbidden, err.Error())
			}
		default:
			r, err = a.mayReach(r, route)
		}
		if err != nil {
			LetGo(w)
			a.failInbound(w, r, route, err)
			return
		}
		a.carryHTTP(w, r, route, a.failInbound)
	})
}

// mayReach reports whether who makes a request by a host name may reach the port, and returns the
// request with who that is.
func (a *api) mayReach(r *http.Request, route inbound.Route) (*http.Request, error) {
	who, err := a.Guard.Identify(r)
	if scope := (*auth.ScopeError)(nil); errors.As(err, &scope) {
		return r, err
	}
	if err != nil {
		return r, face.NewError(http.StatusUnauthorized, err.Error()+": send it as "+auth.TokenHeader+
			", or ask for a signed URL")
	}
	audit.From(r.Context()).Who = who.Who
	r = r.WithContext(auth.With(r.Context(), who))
	if err := who.Need(portScope); err != nil {
		return r, err
	}
	return r, a.Manager.Reach(r.Context(), route.ID)
}

// tcpPort carries bytes to a port of a guest.
func (a *api) tcpPort(w http.ResponseWriter, r *http.Request) error {
	port, err := portOf(r)
	if err != nil {
		return err
	}
	a.carry(w, r, "tcp", inbound.Route{ID: r.PathValue("id"), Port: port}, a.proxy.TCP, a.failInbound)
	return nil
}

func portOf(r *http.Request) (uint16, error) {
	port, err := inbound.ParsePort(r.PathValue("port"))
	if err != nil {
		return 0, invalid.Errorf("port", "%q: want a number from 1 to 65535", r.PathValue("port"))
	}
	return port, nil
}

// Life of a signed URL.
const (
	defaultLink = time.Hour
	maxLink     = 30 * 24 * time.Hour
)

// signPort answers with a URL by which everybody who has it reaches a port of a guest for a while.
func (a *api) signPort(r *http.Request, req *apiv1.PortURLRequest) (out apiv1.PortURL, err error) {
	port, err := portOf(r)
	if err != nil {
		return out, err
	}
	ttl, err := seconds("ttl_secs", req.TTLSecs, defaultLink, maxLink)
	if err != nil {
		return out, err
	}
	id := r.PathValue("id")
	if _, err := a.Manager.Get(id); err != nil {
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
