// Package v1 is the daemon's REST API: JSON over HTTP, as described by api/openapi.yaml. A client
// reaches sandboxes and snapshots only through its tenancy.View.
//
// The package translates and checks requests and limits their number; package sandbox decides what
// happens to sandboxes. Request bodies are strict: an unknown field is an error that names the
// field. Every error is answered with a problem document (RFC 9457) that contains a code (see
// package face). The constants below bound everything that a client can make large.
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
	"github.com/forkd/forkd/internal/host/atrest"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/diff"
	"github.com/forkd/forkd/internal/host/history"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/move"
)

// Limits on requests.
const (
	maxUpload    = 1 << 30  // bytes of an uploaded file
	maxArchive   = 64 << 30 // bytes of an uploaded archive
	maxDepth     = 64       // depth of a listing of files
	maxOutput    = 8 << 20  // bytes of stdout that are kept; the same for stderr
	maxArgs      = 4096     // arguments of a command
	maxStdin     = 8 << 20  // bytes of a command's input
	maxExecBody  = face.MaxBody + maxStdin/3*4
	maxExec      = time.Hour
	maxUnwatched = 30 * 24 * time.Hour // time limit of a command that is detached, on a WebSocket, or answered in lines
	maxStart     = time.Minute         // time limit for starting a detached command
	defaultExec  = 30 * time.Second
	maxBoot      = 3600 * time.Second
	maxPingDelay = 10 * time.Second
	maxRestart   = time.Minute // time limit for restarting an interpreter
)

// Config configures the API.
type Config struct {
	Face       *face.Face
	Baker      *bake.Baker
	Builds     *build.Builder
	Images     *build.Images
	Differ     *diff.Differ
	Hub        *hub.Hub
	Crypter    *atrest.Crypter
	Moves      *move.Book
	ScratchDir string // directory for disks while builder VMs fill them; the files in it have no names
	Metrics    http.Handler
	History    *history.Recorder // past measurements of sandboxes and of the host
	Version    string
	Accel      string
	Node       string              // name of this host in a cluster; empty: none
	GuestPort  int                 // port of the addresses in answers to forkd 0.5 clients; 0: answers have no addresses
	Domain     inbound.Domain      // parent domain of the host names of ports; zero: ports have no host names
	Links      *auth.Links         // signs permissions in such host names; nil without a domain
	Traces     *tracing.Tracer     // nil: none
	Tried      func(result string) // called after each try; nil: tries are not counted
	// The reason why some limits of sandboxes cannot be enforced; empty: all limits can be
	// enforced.
	Missing   string
	Admission apiv1.Admission // limits on admission, reported to clients
	SSH       *apiv1.SSH      // reported to clients; nil: the daemon serves no SSH
	// NoKVM returns the reason why no VM can run on this host. nil: VMs are assumed to run.
	NoKVM func() error
	// MCP returns the handler of the Model Context Protocol, whose tools call api. nil: the daemon
	// has none.
	MCP func(api http.Handler) http.Handler
}

type api struct {
	Config
	open map[string]bool // patterns of routes that need no token
	held held
	// texts has the texts of the latest events. All streams share it.
	texts eventTexts
	mcp   http.Handler // answers messages of the Model Context Protocol; may be nil
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

// serve returns the handler for a row of the table of routes. The handler makes its checks in a
// fixed order: a request without the required scope takes no place, and its answer does not even
// say whether the query is valid.
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

// authorized refuses requests from web pages of another origin and, unless the route is open,
// identifies the client.
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

// noted removes the path below the port from the audit entry of a request to a port. That part of
// the path belongs to the guest and may be a secret.
func noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if route, ok := inbound.FindPath(r.URL); ok {
			e := audit.From(r.Context())
			e.Path, e.Sandbox, e.Route = route.Prefix+"/", route.ID, PortRoute
		}
		next.ServeHTTP(w, r)
	})
}

func (a *api) healthz(w http.ResponseWriter, r *http.Request) error {
	return face.WriteJSON(w, r, http.StatusOK, apiv1.Health{OK: true})
}

// readyz reports whether the daemon accepts requests, whether VMs can run, and whether the pool of
// waiting VMMs is full. With ?warm=true, the daemon is ready only if the pool is full.
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
	return face.WriteJSON(w, r, status, ready)
}

func (a *api) version(r *http.Request) (apiv1.Version, error) {
	v := apiv1.Version{
		Version: a.Version, API: "v1", Accel: a.Accel, Node: a.Node, HostMemoryMiB: bake.HostMemoryMiB(),
		LimitsMissing: a.Missing, Admission: a.Admission, SSH: a.SSH,
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
