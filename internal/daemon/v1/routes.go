// Package v1 is the daemon's REST API, described by api/openapi.yaml: JSON over HTTP on a
// sandbox.Manager.
//
// It translates, checks and limits; it decides nothing about sandboxes. Request bodies are strict
// (an unknown field is an error that names it), every error is a problem (problem.go) with a code
// from errors.go, and everything a client can make large is bounded by the constants below.
package v1

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/daemon/once"
	"github.com/forkd/forkd/internal/daemon/tracing"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/workspace"
)

// Limits on requests.
const (
	maxBody      = 2 << 20  // bytes of a JSON body
	maxUpload    = 1 << 30  // bytes of an uploaded file
	maxArchive   = 64 << 30 // bytes of an uploaded archive
	maxDepth     = 64       // of a listing
	maxOutput    = 8 << 20  // bytes kept of stdout and of stderr
	maxArgs      = 4096     // arguments of a command
	maxStdin     = 8 << 20  // bytes of its input
	maxExecBody  = maxBody + maxStdin/3*4
	maxExec      = time.Hour
	maxUnwatched = 30 * 24 * time.Hour // of a command that is detached, on a WebSocket or answered in lines
	maxStart     = time.Minute         // until a detached command runs
	defaultExec  = 30 * time.Second
	maxBoot      = 3600 * time.Second
	maxPingDelay = 10 * time.Second
	maxRestart   = time.Minute // of an interpreter
)

// Config is what the API serves.
type Config struct {
	Manager    *sandbox.Manager
	Once       *once.Book // answers to requests that are not to be carried out twice
	Baker      *bake.Baker
	Workspaces *workspace.Set
	Metrics    http.Handler
	Guard      *auth.Guard // nil: everybody may do everything
	Hosts      []string    // names of this host that clients without a token may use, besides those of loopback
	Audit      *audit.Log  // nil: none
	Version    string
	Accel      string
	GuestPort  int // of the addresses that clients of forkd 0.5 are told; 0: none
	Log        *slog.Logger
	Face       *face.Face
	Domain     inbound.Domain                                     // of host names of ports; the zero Domain: none
	Links      *auth.Links                                        // signs such names; nil if there is no domain
	Traces     *tracing.Tracer                                    // nil: none
	Streams    Streams                                            // counts streams to ports
	Requests   func(route string, status int, took time.Duration) // counts all requests; nil: nobody
	// why limits of sandboxes cannot all be enforced; empty: they can
	Missing   string
	Admission apiv1.Admission // for those who ask
	Stopping  context.Context // ends when streams to ports are to end; nil: never
	// says why no VM can run on this host; nil: it is taken that they can
	NoKVM func() error
	// MCP makes what serves tools for models, which call api; nil: there are none.
	MCP func(api http.Handler) http.Handler
}

type api struct {
	Config
	open  map[string]bool // patterns of routes that need no token
	proxy *inbound.Proxy
	held  held
	mcp   http.Handler // answers messages of the Model Context Protocol; nil: nothing does
}

func (c Config) withDefaults() Config {
	if c.Stopping == nil {
		c.Stopping = context.Background()
	}
	if c.NoKVM == nil {
		c.NoKVM = func() error { return nil }
	}
	return c
}

// New returns the API.
func New(cfg Config) *Server {
	a := newAPI(cfg)
	mux := http.NewServeMux()
	for _, row := range a.routes() {
		a.open[row.pattern] = row.scope == open
		mux.HandleFunc(row.pattern, a.serve(row))
	}
	unknown := func(w http.ResponseWriter, r *http.Request) error { return unknownRoute(mux, w, r) }
	mux.HandleFunc("/", a.serve(route{pattern: "/", gate: cfg.Face.Reads, handle: unknown}))
	s := &Server{cfg.Audit.Handler(a.noted(a.byHost(a.knownHost(a.sameOrigin(a.authorized(a.byPath(wholePath(mux))))))),
		a.done), a}
	if cfg.MCP != nil {
		a.mcp = cfg.MCP(s)
	}
	return s
}

func newAPI(cfg Config) *api {
	cfg = cfg.withDefaults()
	return &api{
		Config: cfg,
		open:   make(map[string]bool),
		proxy: inbound.New(inbound.Config{IsToken: cfg.Guard.IsToken, Idle: cfg.Face.Limits.Idle,
			Stall: cfg.Face.Limits.Stall}),
		held: held{detach: map[heldProcess]context.CancelCauseFunc{}},
	}
}

// serve does what a row says, in the order that its checks need: a request without the scope learns
// nothing, not even whether its query is right, and takes no place.
func (a *api) serve(row route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e := audit.From(r.Context())
		e.Route, e.Sandbox = row.pattern, r.PathValue("id")
		err := a.permitted(r, row.scope)
		if err == nil {
			err = checkQuery(row, r)
		}
		if err != nil {
			a.fail(w, r, err)
			return
		}
		r, done := a.Face.Memory.Sharing(r)
		defer done()
		row.gate.Serve(w, r, row.handle, a.fail)
	}
}

// knownHost refuses requests over TCP that carry another host's name, unless they need a token. See
// auth.CheckHost.
func (a *api) knownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if ok && addr.Network() == "tcp" && !a.Guard.Demands() {
			if err := auth.CheckHost(r.Host, a.Hosts); err != nil {
				refuse(w, http.StatusForbidden, err.Error())
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// sameOrigin refuses what a web page of another origin makes a browser on this host send: a daemon
// on loopback without a token would obey it. Requests that only read are refused like the others:
// an answer is not the page's to see either. Programs send no Origin and are not concerned.
func (a *api) sameOrigin(next http.Handler) http.Handler {
	p := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asPost := *r // the check lets safe methods pass
		asPost.Method = http.MethodPost
		if p.Check(&asPost) != nil {
			refuse(w, http.StatusForbidden, "cross-origin request from a browser refused")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authorized finds out who makes a request, of everything but what is open to all.
func (a *api) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.isOpen(r.URL.Path) {
			if r.ContentLength != 0 {
				LetGo(w)
			}
			next.ServeHTTP(w, r)
			return
		}
		who, err := a.Guard.Identify(r)
		audit.From(r.Context()).Who = who.Who
		if scope := (*auth.ScopeError)(nil); errors.As(err, &scope) {
			LetGo(w)
			writeProblem(w, err)
			return
		}
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, err.Error())
			return
		}
		next.ServeHTTP(w, r.WithContext(auth.With(r.Context(), who)))
	})
}

// refuse answers a request of somebody who may not make it.
func refuse(w http.ResponseWriter, status int, msg string) {
	LetGo(w)
	writeProblem(w, face.NewError(status, msg))
}

// LetGo makes the connection end with the answer to a stranger, who keeps nothing of the daemon:
// the server does not wait for a body that may never come.
func LetGo(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // a connection without deadlines is a test's
}

// done counts a request. Of routes there are as many as in the document, whatever clients ask for.
func (a *api) done(e audit.Entry, err error) {
	if err != nil {
		a.Log.Error("audit", "error", err)
	}
	if a.Requests != nil {
		a.Requests(e.Route, e.Status, time.Duration(e.LatencyUS)*time.Microsecond)
	}
}

// noted makes of the audit entry what may be known of a request. What follows the port of a guest
// is the guest's business, and may be a secret.
func (a *api) noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := audit.From(r.Context())
		if peer, ok := auth.PeerFrom(r.Context()); ok {
			e.Remote = fmt.Sprintf("unix:%d", peer.PID)
		}
		if route, _, below, err := a.Domain.FindHost(r.Host, r.URL); below {
			e.Path = "/"
			if err == nil {
				e.Route = portRoute
				e.Host, e.Sandbox = fmt.Sprintf("%d-%s", route.Port, route.ID), route.ID
			}
		} else if route, ok := inbound.FindPath(r.URL); ok {
			e.Path, e.Sandbox, e.Route = route.Prefix+"/", route.ID, portRoute
		}
		next.ServeHTTP(w, r)
	})
}

func (a *api) healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, apiv1.Health{OK: true})
}

// readyz says whether the daemon takes requests, whether VMs can run, and whether forks find
// waiting VMMs. With ?warm=true a daemon that has to start some first is not ready.
func (a *api) readyz(w http.ResponseWriter, r *http.Request) error {
	status, ready := http.StatusOK, apiv1.Ready{PoolShells: a.Manager.PoolSize(), PoolWanted: a.Manager.PoolWanted()}
	ready.PoolWarm = ready.PoolShells >= ready.PoolWanted
	warm, err := boolQuery(r, "warm")
	if err != nil {
		return err
	}
	switch err := a.NoKVM(); {
	case a.Stopping.Err() != nil:
		ready.Reason = "the daemon is ending"
	case err != nil:
		ready.Reason = err.Error()
	case warm && !ready.PoolWarm:
		ready.Reason = "the pool is not warm"
	}
	if ready.Ready = ready.Reason == ""; !ready.Ready {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	return writeJSON(w, status, ready)
}

// metrics are of all sandboxes of the host.
func (a *api) metrics(w http.ResponseWriter, r *http.Request) error {
	if err := sandbox.Within(r.Context(), false, "metrics of all sandboxes"); err != nil {
		return err
	}
	a.Metrics.ServeHTTP(w, r)
	return nil
}

func (a *api) version(r *http.Request) (apiv1.Version, error) {
	v := apiv1.Version{
		Version: a.Version, API: "v1", Accel: a.Accel, HostMemoryMiB: bake.HostMemoryMiB(),
		LimitsMissing: a.Missing, Admission: a.Admission,
	}
	if who := auth.From(r.Context()); who.Scope != 0 {
		v.Scope = who.Scope.String()
	}
	if err := a.NoKVM(); err != nil {
		v.NoKVM = err.Error()
	}
	if sandbox.PrefixOf(r.Context()) == "" { // whose labels those have is not known
		for _, l := range a.Manager.LeftAlone() {
			v.LeftAlone = append(v.LeftAlone, apiv1.LeftAlone(l))
		}
	}
	return v, nil
}
