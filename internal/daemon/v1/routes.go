// Package v1 is the daemon's REST API, described by api/openapi.yaml: JSON over HTTP on a
// tenancy.View.
//
// It translates, checks and limits; it decides nothing about sandboxes. Request bodies are strict
// (an unknown field is an error that names it), every error is a problem (problem.go) with a code
// from errors.go, and everything a client can make large is bounded by the constants below.
package v1

import (
	"context"
	"errors"
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/daemon/tracing"
	"github.com/forkd/forkd/internal/host/bake"
)

// Limits on requests.
const (
	maxUpload    = 1 << 30  // bytes of an uploaded file
	maxArchive   = 64 << 30 // bytes of an uploaded archive
	maxDepth     = 64       // of a listing
	maxOutput    = 8 << 20  // bytes kept of stdout and of stderr
	maxArgs      = 4096     // arguments of a command
	maxStdin     = 8 << 20  // bytes of its input
	maxExecBody  = face.MaxBody + maxStdin/3*4
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
	Face      *face.Face
	Baker     *bake.Baker
	Builds    *build.Builder
	Metrics   http.Handler
	Version   string
	Accel     string
	GuestPort int             // of the addresses that clients of forkd 0.5 are told; 0: none
	Domain    inbound.Domain  // of host names of ports; the zero Domain: none
	Links     *auth.Links     // signs such names; nil if there is no domain
	Traces    *tracing.Tracer // nil: none
	// why limits of sandboxes cannot all be enforced; empty: they can
	Missing   string
	Admission apiv1.Admission // for those who ask
	// says why no VM can run on this host; nil: it is taken that they can
	NoKVM func() error
	// MCP makes what serves tools for models, which call api; nil: there are none.
	MCP func(api http.Handler) http.Handler
}

type api struct {
	Config
	open map[string]bool // patterns of routes that need no token
	held held
	mcp  http.Handler // answers messages of the Model Context Protocol; nil: nothing does
}

func (c Config) withDefaults() Config {
	if c.NoKVM == nil {
		c.NoKVM = func() error { return nil }
	}
	return c
}

// New returns the API.
func New(cfg Config) http.Handler {
	a := newAPI(cfg)
	mux := http.NewServeMux()
	for _, row := range a.routes() {
		a.open[row.pattern] = row.scope == open
		mux.HandleFunc(row.pattern, a.serve(row))
	}
	unknown := func(w http.ResponseWriter, r *http.Request) error { return unknownRoute(mux, w, r) }
	mux.HandleFunc("/", a.serve(route{pattern: "/", gate: cfg.Face.Reads, handle: unknown}))
	h := cfg.Face.Audited(noted(a.authorized(a.byPath(wholePath(mux)))))
	if cfg.MCP != nil {
		a.mcp = cfg.MCP(h)
	}
	return h
}

func newAPI(cfg Config) *api {
	cfg = cfg.withDefaults()
	return &api{
		Config: cfg,
		open:   make(map[string]bool),
		held:   held{detach: map[heldProcess]context.CancelCauseFunc{}},
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
			a.Face.Fail(w, r, err)
			return
		}
		r, done := a.Face.Memory.Sharing(r)
		defer done()
		row.gate.Serve(w, r, row.handle, a.Face.Fail)
	}
}

// authorized refuses what a page of another origin sends, and finds out who makes a request, of everything
// but what is open to all.
func (a *api) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := a.Face.CheckOrigin(r); err != nil {
			face.Refuse(w, err)
			return
		}
		if a.isOpen(r.URL.Path) {
			if r.ContentLength != 0 {
				face.LetGo(w)
			}
			next.ServeHTTP(w, r)
			return
		}
		who, err := a.Face.Guard.Identify(r)
		audit.From(r.Context()).Who = who.Who
		if scope := (*auth.ScopeError)(nil); errors.As(err, &scope) {
			face.Refuse(w, err)
			return
		}
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			face.Refuse(w, face.NewError(http.StatusUnauthorized, err.Error()))
			return
		}
		next.ServeHTTP(w, r.WithContext(auth.With(r.Context(), who)))
	})
}

// noted makes of the audit entry what may be known of a request to a port. What follows the port of a
// guest is the guest's business, and may be a secret.
func noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if route, ok := inbound.FindPath(r.URL); ok {
			e := audit.From(r.Context())
			e.Path, e.Sandbox, e.Route = route.Prefix+"/", route.ID, PortRoute
		}
		next.ServeHTTP(w, r)
	})
}

func (a *api) healthz(w http.ResponseWriter, _ *http.Request) error {
	return face.WriteJSON(w, http.StatusOK, apiv1.Health{OK: true})
}

// readyz says whether the daemon takes requests, whether VMs can run, and whether forks find
// waiting VMMs. With ?warm=true a daemon that has to start some first is not ready.
func (a *api) readyz(w http.ResponseWriter, r *http.Request) error {
	status, ready := http.StatusOK, apiv1.Ready{PoolShells: a.Face.Host.PoolSize(), PoolWanted: a.Face.Host.PoolWanted()}
	ready.PoolWarm = ready.PoolShells >= ready.PoolWanted
	warm, err := boolQuery(r, "warm")
	if err != nil {
		return err
	}
	switch err := a.NoKVM(); {
	case a.Face.Stopping.Err() != nil:
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
	return face.WriteJSON(w, status, ready)
}

// metrics are of all sandboxes of the host.
func (a *api) metrics(w http.ResponseWriter, r *http.Request) error {
	if err := a.view(r).Limited("metrics of all sandboxes"); err != nil {
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
	for _, l := range a.view(r).LeftAlone() {
		v.LeftAlone = append(v.LeftAlone, apiv1.LeftAlone(l))
	}
	return v, nil
}
