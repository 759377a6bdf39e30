package face

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/host/agentclient"
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
	outcomeRefused = "refused" // no server listens there, or there are too many streams or requests
	outcomeState   = "state"   // the sandbox does not exist or is not running
	outcomeCut     = "cut"     // the sandbox was deleted, suspended or rolled back during the stream
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
	case errors.Is(err, ErrTooMany), errors.Is(err, ErrTooOften), errors.As(err, &guest) &&
		guest.Code != agentclient.CodeInternal:
		return outcomeRefused
	case r.Context().Err() != nil:
		return outcomeClient
	}
	return outcomeFailed
}

// FailStream sends the error of a request that has not been answered yet.
type FailStream func(w http.ResponseWriter, r *http.Request, route inbound.Route, err error)

// carrier carries a stream over connections made by dial. See inbound.Proxy for its results.
type carrier func(w http.ResponseWriter, r *http.Request, dial inbound.Dial) (answered bool, err error)

// carry counts a stream to a port and lets c carry it. The sandbox is in use for that time.
func (f *Face) carry(
	w http.ResponseWriter,
	r *http.Request,
	kind string,
	route inbound.Route,
	c carrier,
	fail FailStream,
) {
	answered, err := f.useStream(w, r, kind, route, c)
	switch {
	case err == nil:
	case answered:
		panic(http.ErrAbortHandler) // the client must not mistake a part for the whole
	default:
		fail(w, r, route, err)
	}
}

func (f *Face) useStream(w http.ResponseWriter, r *http.Request, kind string, route inbound.Route,
	c carrier) (answered bool, err error) {
	f.Counts.StreamBegun()
	begun := time.Now()
	defer func() { f.Counts.StreamEnded(kind, outcomeOf(r, err), time.Since(begun)) }()
	g := f.Streams
	switch {
	case route.Signed, route.Open: // even if they reach the agent: f.Guests is for other clients
		g = f.Signed
	case route.Agent:
		g = f.Guests
	}
	if route.Signed || route.Open {
		if err := f.Strangers.Enter(route.ID, f.ownerOf(route.ID)); err != nil {
			return false, err
		}
	}
	client := f.clientOf(r, route.ID)
	leave, err := g.Enter(client, route.ID)
	if err != nil {
		return false, err
	}
	defer leave()
	auth.Identified(r.Context(), client)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(f.Stopping, cancel)()
	err = f.Host.Permitted(route.ID).Use(ctx, route.ID, "reach a port of", func(ctx context.Context,
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

// FailInbound answers instead of the guest, and marks the answer as the daemon's. It logs nothing,
// because guests could fill the log.
func (f *Face) FailInbound(w http.ResponseWriter, r *http.Request, _ inbound.Route, err error) {
	if r.ContentLength != 0 || errors.Is(err, ErrTooOften) {
		LetGo(w) // a client with a signed URL is a stranger too
	}
	w.Header().Set(inbound.ErrorHeader, "true")
	w.Header().Set(audit.RequestIDHeader, audit.From(r.Context()).RequestID)
	WriteProblem(w, err)
}

// CarryHTTP carries a permitted request to a port of a sandbox.
func (f *Face) CarryHTTP(w http.ResponseWriter, r *http.Request, route inbound.Route, fail FailStream) {
	w.Header().Del(audit.RequestIDHeader) // the guest may set one of its own
	f.carry(w, r, "http", route, func(w http.ResponseWriter, r *http.Request, dial inbound.Dial) (bool, error) {
		return f.proxy.HTTP(w, r, route, dial)
	}, fail)
}

// CarryTCP carries bytes to a port of a sandbox.
func (f *Face) CarryTCP(w http.ResponseWriter, r *http.Request, route inbound.Route) {
	f.carry(w, r, "tcp", route, f.proxy.TCP, f.FailInbound)
}

// clientOf names the client of a request to a sandbox: its principal or, for a stranger with only a
// signed URL or a token of the sandbox, the owner of the sandbox.
func (f *Face) clientOf(r *http.Request, id string) string {
	if who := auth.From(r.Context()).Who; who != "" {
		return who
	}
	return f.ownerOf(id)
}

// ownerOf returns the owner of a sandbox, or "" if there is no such sandbox.
func (f *Face) ownerOf(id string) string {
	i, _ := f.Host.Permitted(id).Sandbox(id) // a missing sandbox has no owner
	return i.Owner
}
