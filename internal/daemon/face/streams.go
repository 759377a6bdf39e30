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

// Streams counts streams to ports of guests. kind is "http", "tcp" or "ssh".
type Streams interface {
	StreamBegun()
	StreamEnded(kind, outcome string, took time.Duration)
}

// Outcomes of streams, in metrics.
const (
	outcomeOK      = "ok"
	outcomeRefused = "refused" // no server listens at the port, or there are too many streams or requests
	outcomeState   = "state"   // the sandbox does not exist or is not running
	outcomeCut     = "cut"     // the sandbox was deleted, suspended or rolled back while the stream was open
	outcomeClient  = "client"  // the client left
	outcomeFailed  = "failed"  // anything else, such as an answer that is not HTTP
)

func outcomeOf(ctx context.Context, err error) string {
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
	case ctx.Err() != nil:
		return outcomeClient
	}
	return outcomeFailed
}

// FailStream sends the error of a request that has not been answered yet.
type FailStream func(w http.ResponseWriter, r *http.Request, route inbound.Route, err error)

// carrier carries a stream over connections made by dial. It has the same results as
// inbound.Proxy.HTTP.
type carrier func(ctx context.Context, dial inbound.Dial) (answered bool, err error)

// carry counts a stream to a port and calls c to carry the stream. The sandbox counts as in use
// while the stream is open.
func (f *Face) carry(
	w http.ResponseWriter,
	r *http.Request,
	kind string,
	route inbound.Route,
	c carrier,
	fail FailStream,
) {
	answered, err := f.useStream(r.Context(), kind, route, c)
	switch {
	case err == nil:
	case answered:
		panic(http.ErrAbortHandler) // abort, so that the client does not mistake a part for the whole answer
	default:
		fail(w, r, route, err)
	}
}

func (f *Face) useStream(ctx context.Context, kind string, route inbound.Route, c carrier) (answered bool, err error) {
	asked := ctx
	f.Counts.StreamBegun()
	begun := time.Now()
	defer func() { f.Counts.StreamEnded(kind, outcomeOf(asked, err), time.Since(begun)) }()
	g := f.Streams
	switch {
	case route.Signed, route.Open: // even if the stream goes to the agent, because f.Guests is for clients with a token
		g = f.Signed
	case route.Agent:
		g = f.Guests
	}
	if route.Signed || route.Open {
		if err := f.Strangers.Enter(route.ID, f.ownerOf(route.ID)); err != nil {
			return false, err
		}
	}
	client := f.clientOf(ctx, route.ID)
	leave, err := g.Enter(client, route.ID)
	if err != nil {
		return false, err
	}
	defer leave()
	if route.Signed || route.Open {
		auth.Admitted(ctx, client)
	} else {
		auth.Identified(ctx, client)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.Stopping, cancel)()
	err = f.Host.Permitted(route.ID).Use(ctx, route.ID, "reach a port of", func(ctx context.Context,
		dial agentclient.DialFunc) (err error) {
		guest := agentclient.New(dial)
		answered, err = c(ctx, func(ctx context.Context) (agentclient.PortConn, error) {
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

// maxDial bounds the time that an agent may take to connect. The agent tries two addresses.
const maxDial = 30 * time.Second

// FailInbound answers in place of the guest, with a header that marks the answer as an answer of
// the daemon. It logs nothing, because guests could fill the log.
func (f *Face) FailInbound(w http.ResponseWriter, r *http.Request, _ inbound.Route, err error) {
	if r.ContentLength != 0 || errors.Is(err, ErrTooOften) {
		LetGo(w) // the client may have only a signed URL
	}
	w.Header().Set(inbound.ErrorHeader, "true")
	w.Header().Set(audit.RequestIDHeader, audit.From(r.Context()).RequestID)
	WriteProblem(w, err)
}

// CarryHTTP carries a permitted request to a port of a sandbox. If it cannot do this, it calls
// fail(…), which sends the answer.
func (f *Face) CarryHTTP(w http.ResponseWriter, r *http.Request, route inbound.Route, fail FailStream) {
	w.Header().Del(audit.RequestIDHeader) // the guest's answer may have this header itself
	f.carry(w, r, "http", route, func(ctx context.Context, dial inbound.Dial) (bool, error) {
		return f.proxy.HTTP(w, r.WithContext(ctx), route, dial)
	}, fail)
}

// CarryTCP carries bytes to a port of a sandbox.
func (f *Face) CarryTCP(w http.ResponseWriter, r *http.Request, route inbound.Route) {
	f.carry(w, r, "tcp", route, func(ctx context.Context, dial inbound.Dial) (bool, error) {
		return f.proxy.TCP(w, r.WithContext(ctx), dial)
	}, f.FailInbound)
}

// CarryStream connects a stream of a client to a port of a sandbox. The caller has checked that the
// principal in ctx may reach the sandbox. If ctx has no principal, every process that can connect
// to the caller may reach the sandbox, and the stream has the limits of streams by signed URLs. For
// the kind, see Streams. For accept(), see inbound.Proxy.Carry.
func (f *Face) CarryStream(ctx context.Context, kind, id string, port uint16,
	accept func() (inbound.Stream, <-chan struct{}, error)) (accepted bool, err error) {
	return f.useStream(ctx, kind, inbound.Route{ID: id, Port: port, Open: auth.From(ctx).Who == ""},
		func(ctx context.Context, dial inbound.Dial) (bool, error) { return f.proxy.Carry(ctx, dial, accept) })
}

// clientOf returns the name under which a request to a sandbox is counted. The result is the name
// of the request's principal. If the request has no principal (because it uses a signed URL or a
// token of the sandbox), the result is the owner of the sandbox.
func (f *Face) clientOf(ctx context.Context, id string) string {
	if who := auth.From(ctx).Who; who != "" {
		return who
	}
	return f.ownerOf(id)
}

// ownerOf returns the owner of a sandbox, or "" if there is no such sandbox.
func (f *Face) ownerOf(id string) string {
	i, _ := f.Host.Permitted(id).Sandbox(id) // i is the zero value if there is no such sandbox
	return i.Owner
}
