// Package e2b serves E2B's API, so that E2B's SDKs work with this daemon. It serves E2B's control
// plane in addition to /v1, for the same sandboxes and snapshots, and carries requests to the
// services of each sandbox.
//
// A template is a snapshot, named by its tag; creating a sandbox is a fork. Clients of /v1 can use
// a sandbox made by this package, and clients of this package can use a sandbox made by /v1. The
// package converts E2B's JSON to the daemon's operations, and their results to E2B's JSON, errors
// and statuses. It has no policy of its own about sandboxes. If a request uses a feature that forkd
// lacks, the package refuses the request, and the error names the feature. The package ignores only
// fields that no known SDK sends, because every release of the SDKs adds fields. docs/e2b.md lists
// the differences.
//
// Times in the protocol are whole seconds. Sizes are MiB in descriptions of sandboxes and bytes in
// metrics. The SDKs e2b 2.51.0 (npm) and 2.63.0 (PyPI) use this protocol; both were run against
// this package.
package e2b

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/daemon/template"
	"github.com/forkd/forkd/internal/daemon/tracing"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/history"
	"github.com/forkd/forkd/internal/host/volfiles"
)

// envdVersion is the version of E2B's agent, envd, whose features forkd's agent has. The SDKs use
// features according to this version.
const envdVersion = "0.6.13"

// Bounds on requests.
const (
	maxBody       = 1 << 20 // bytes of a JSON body
	maxWorks      = 256     // concurrent requests that change or measure something
	maxWakes      = 64      // concurrent resumptions for requests to sandboxes
	maxWaiting    = 48      // requests that wait for the resumption of one sandbox
	maxOwnWaiting = 256     // requests that wait for resumptions of one owner's sandboxes
	maxAllWaiting = 1024    // requests that wait for resumptions: half of the connections of a listener
	maxUploads    = 16      // concurrent uploads of archives for builds
	maxOwn        = 4       // concurrent uploads of one client; its other uploads wait
	maxQueue      = 100     // waiting uploads of one client: the JavaScript SDK sends all archives of a template at once
	maxQueueAll   = 500     // waiting uploads of all clients, so that other requests keep most connections of a listener
	maxTimeout    = 365 * 24 * time.Hour
)

// Config configures a Server.
type Config struct {
	Face    *face.Face
	Keys    *auth.Keys // derives the tokens of sandboxes and signs links for uploads
	Builder *template.Builder
	Tags    *Tags
	Domain  inbound.Domain
	History *history.Recorder // past measurements of sandboxes
	Traces  *tracing.Tracer   // nil: no tracing
	Files   *volfiles.Server  // serves the files of volumes
}

// Server serves E2B's API.
type Server struct {
	Config
	hosts   []string // host names of the control plane
	mux     *http.ServeMux
	wakes   *wakes
	uploads *gate.Gate
}

// New returns a Server. It handles the requests for which Carries or Serves returns true.
func New(cfg Config) *Server {
	a := &Server{Config: cfg, mux: http.NewServeMux(), wakes: newWakes(),
		uploads: gate.NewQueued(maxUploads, gate.Queue{Key: maxQueue, All: maxQueueAll})}
	if cfg.Domain.IsSet() {
		a.hosts = []string{apiLabel + cfg.Domain.Name()}
	}
	a.routes()
	return a
}

// apiLabel is the first label of the control plane's host name. An SDK that is configured with a
// domain uses api.DOMAIN.
const apiLabel = "api."

// IsHost reports whether a host name below the daemon's domain is the control plane's.
func IsHost(host string) bool { return strings.HasPrefix(strings.ToLower(host), apiLabel) }

// Serves reports whether a request at the daemon's own address is for E2B's API. It decides by the
// path, or by a header that names a sandbox.
func (a *Server) Serves(r *http.Request) bool {
	return isControl(r.URL.Path) || NamesSandbox(r) || r.URL.Path == "/files"
}

// NamesSandbox reports whether a header of a request names a sandbox. The request then belongs to
// this sandbox, whatever its path is.
func NamesSandbox(r *http.Request) bool { return r.Header.Get(idHeader) != "" }

// ServeHTTP answers a request for which Serves returned true.
func (a *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := a.sharedData
	// SDKs of 2025 send requests to the control plane with headers that name a sandbox and the
	// agent's port. If the headers name any other port, the request is for a server in the sandbox,
	// even if the path or the key looks like a request to the control plane.
	if isControl(r.URL.Path) && (r.Header.Get(idHeader) == "" || r.Header.Get(keyHeader) != "" && sharedRoute(r).Agent) {
		h = a.control
	}
	a.Face.Audited(http.HandlerFunc(h)).ServeHTTP(w, r)
}

// Carry passes a request on to a port of a sandbox. The request's Host header identifies the sandbox
// and the port. Carry is called only if Carries has returned true.
func (a *Server) Carry(w http.ResponseWriter, r *http.Request, route inbound.Route) {
	route.Agent = isAgentPort(route.Port)
	a.Face.Audited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.data(w, r, route) })).ServeHTTP(w, r)
}

// controlRoots are the beginnings of all paths of the control plane. No path of /v1 begins with one
// of them.
var controlRoots = []string{"sandboxes", "snapshots", "templates", "v2/sandboxes", "v2/templates",
	"v3/templates", "default-templates", "volumes", contentRoot, "secrets", "teams"}

func isControl(path string) bool {
	return slices.ContainsFunc(controlRoots, func(root string) bool { return isBelow(path, root) })
}

// isBelow reports whether a path is /root or begins with /root/.
func isBelow(path, root string) bool {
	rest, ok := strings.CutPrefix(path, "/"+root)
	return ok && (rest == "" || rest[0] == '/')
}

// routes() registers the routes of the control plane. Each route requires the scope that the same
// operation requires in /v1.
func (a *Server) routes() {
	works := face.NewGate(face.Class{Total: maxWorks})
	lists, reads := a.Face.Lists, a.Face.Reads
	for _, route := range []struct {
		pattern string
		scope   auth.Scope
		gate    *face.Gate
		handle  face.Handler
	}{
		{"POST /sandboxes", auth.Run, works, a.Face.Once(a.createV1)},
		{"POST /v2/sandboxes", auth.Run, works, a.Face.Once(a.create)},
		{"GET /sandboxes", auth.Read, lists, a.listV1},
		{"GET /v2/sandboxes", auth.Read, lists, a.list},
		{"GET /sandboxes/metrics", auth.Read, works, a.metricsOfMany},
		// This route needs Run, because the answer contains the token of the sandbox.
		{"GET /sandboxes/{id}", auth.Run, reads, a.info},
		{"DELETE /sandboxes/{id}", auth.Run, a.Face.Ends, a.kill},
		{"POST /sandboxes/{id}/connect", auth.Run, works, a.connect},
		{"POST /v2/sandboxes/{id}/connect", auth.Run, works, a.connect},
		{"POST /sandboxes/{id}/resume", auth.Run, works, a.resume},
		{"POST /sandboxes/{id}/pause", auth.Run, works, a.pause},
		{"POST /sandboxes/{id}/timeout", auth.Run, works, a.setTimeout},
		{"POST /sandboxes/{id}/refreshes", auth.Run, works, a.refresh},
		{"PUT /sandboxes/{id}/network", auth.Run, works, a.setNetwork},
		{"GET /sandboxes/{id}/metrics", auth.Read, works, a.metrics},
		{"GET /sandboxes/{id}/logs", auth.Run, reads, a.logsV1},
		{"GET /v2/sandboxes/{id}/logs", auth.Run, reads, a.logs},
		{"POST /sandboxes/{id}/fork", auth.Run, works, a.Face.Once(a.fork)},
		{"POST /v2/sandboxes/{id}/fork", auth.Run, works, a.Face.Once(a.fork)},
		{"POST /sandboxes/{id}/snapshots", auth.Run, works, a.Face.Once(a.createSnapshot)},
		{"GET /snapshots", auth.Read, lists, a.listSnapshots},
		{"POST /volumes", auth.Run, works, a.Face.Once(a.createVolume)},
		{"GET /volumes", auth.Read, lists, a.listVolumes},
		{"GET /volumes/{volume}", auth.Read, reads, a.volume},
		{"DELETE /volumes/{volume}", auth.Run, a.Face.Ends, a.deleteVolume},
		{"GET /volumecontent/{volume}/dir", auth.Run, works, a.content},
		{"POST /volumecontent/{volume}/dir", auth.Run, works, a.content},
		{"GET /volumecontent/{volume}/path", auth.Run, works, a.content},
		{"PATCH /volumecontent/{volume}/path", auth.Run, works, a.content},
		{"DELETE /volumecontent/{volume}/path", auth.Run, works, a.content},
		{"GET /volumecontent/{volume}/file", auth.Run, works, a.content},
		{"PUT /volumecontent/{volume}/file", auth.Run, works, a.content},
		{"GET /templates", auth.Read, lists, a.listTemplates},
		{"GET /v2/templates", auth.Read, lists, a.listTemplates},
		{"GET /templates/{id}", auth.Read, reads, a.template},
		{"GET /templates/{id}/{what}", auth.Read, reads, a.templatePart},
		{"DELETE /templates/{id}", auth.Admin, works, a.deleteTemplate},
		{"POST /templates/tags", auth.Run, works, a.assignTags},
		{"DELETE /templates/tags", auth.Run, works, a.removeTags},
		// SDKs of 2025 use this route.
		{"POST /v2/templates", auth.Run, works, a.requestBuild},
		{"POST /v3/templates", auth.Run, works, a.requestBuild},
		{"GET /templates/{id}/files/{hash}", auth.Run, reads, a.uploadLink},
		{"POST /v2/templates/{id}/builds/{build}", auth.Run, works, a.startBuild},
		{"GET /templates/{id}/builds/{build}/status", auth.Run, reads, a.buildStatus},
		{"GET /templates/{id}/builds/{build}/logs", auth.Run, reads, a.buildLogs},
	} {
		a.mux.HandleFunc(route.pattern, func(w http.ResponseWriter, r *http.Request) {
			e := audit.From(r.Context())
			if e.Route = route.pattern; strings.Contains(route.pattern, "sandboxes/{id}") {
				e.Sandbox = r.PathValue("id")
			}
			err := auth.From(r.Context()).Need(route.scope)
			if err == nil && e.Sandbox != "" {
				err = a.view(r).Reach(e.Sandbox)
			}
			if err != nil {
				a.fail(w, r, err)
				return
			}
			r, done := a.Face.Memory.Sharing(r)
			defer done()
			route.gate.Serve(w, r, route.handle, a.fail)
		})
	}
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { reads.Serve(w, r, a.unserved, a.fail) })
}

// These constants stand for the pattern of a route, in the audit log and in the metrics, if a
// request has no pattern. controlRoute is for requests to the control plane that match no route, or
// that are refused before they are routed. dataRoute is for requests to sandboxes.
const (
	controlRoute = "E2B"
	dataRoute    = "E2B sandbox"
)

// control answers a request to the control plane.
func (a *Server) control(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut && r.URL.Query().Has(uploadSignature) {
		a.upload(w, r)
		return
	}
	e := audit.From(r.Context())
	e.Route = controlRoute // the pattern replaces controlRoute if the request matches a route
	identify := a.identify
	if isContent(r.URL.Path) {
		identify = a.identifyContent
	}
	who, err := identify(r)
	e.Who = who.Who
	if err != nil {
		face.LetGo(w)
		a.fail(w, r, err)
		return
	}
	a.mux.ServeHTTP(w, r.WithContext(auth.With(r.Context(), who)))
}

// identify returns the principal of a request, by its API key. If no key is required, it refuses
// requests that a browser sends for a web page of another origin; see face.Face.CheckOrigin.
func (a *Server) identify(r *http.Request) (auth.Principal, error) {
	if err := a.Face.CheckOrigin(r, a.hosts...); err != nil {
		return auth.Principal{}, err
	}
	var who auth.Principal
	var err error
	if key := r.Header.Get(keyHeader); key != "" {
		who, err = a.Face.Guard.IdentifyByAPIKey(r, key)
	} else {
		who, err = a.Face.Guard.Identify(r)
	}
	if scope := (*auth.ScopeError)(nil); errors.As(err, &scope) {
		return who, err
	}
	if err != nil {
		return who, face.NewError(http.StatusUnauthorized, "X-API-Key is missing or wrong: want a token of the daemon")
	}
	return who, nil
}
