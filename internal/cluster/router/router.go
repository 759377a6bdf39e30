// Package router serves the API of several daemons at one address.
//
// A node is a host whose daemon the router serves. The id of a sandbox names the node that has made
// it. If that node does not say that the sandbox has moved, the router passes a request about the
// sandbox on to the node's daemon. For a new sandbox it chooses a node (see package placement) by
// what the daemons say about themselves. It merges lists. It keeps no state that another router
// would lack, so several routers can serve the same nodes.
//
// The router checks no token: it passes the client's token on, and the daemons decide. It uses its
// own token only to read what the daemons have. It connects only to the nodes in its list.
package router

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/cluster/placement"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/daemon/metrics"
	"github.com/forkd/forkd/internal/gate"
)

// Config configures a Router.
type Config struct {
	File   string         // path of the list of nodes; read again when it changes
	Domain inbound.Domain // parent domain of the host names of ports; zero: ports have no host names
	Policy placement.Policy
	// True if clients of other hosts can reach the router. Every node must then have a token,
	// because a node without one executes the requests of every client.
	Public bool
	Log    *slog.Logger
}

// Limits on requests that a router holds in memory. Further requests wait. No client can take all
// places; see the function wait.
const (
	maxCreates = 256 // requests that create sandboxes, each of at most face.MaxBody
	maxLists   = 8   // merged lists, each of at most maxListBytes
)

// Router is the handler of all requests.
type Router struct {
	cfg            Config
	metrics        *metrics.Router
	proxy          *httputil.ReverseProxy
	creates, lists *gate.Gate
	wake           chan struct{} // starts a round of questions

	// These are constants, except in tests.
	pollTimeout, listTimeout time.Duration
	pageBytes, listBytes     int

	text     []byte // content of the file of nodes; used by Run only
	reported string // the last error of the file that was logged; used by Run only

	mu    sync.Mutex
	nodes []*node // sorted by name; never changed, only replaced
	next  *round  // the next round of questions to start
}

// New returns a Router. It fails if the list of nodes cannot be used. The caller calls Run.
func New(cfg Config) (*Router, error) {
	r := &Router{cfg: cfg, creates: gate.New(maxCreates), lists: gate.New(maxLists),
		wake: make(chan struct{}, 1), next: &round{make(chan struct{})}, pollTimeout: pollTimeout, listTimeout: listTimeout,
		pageBytes: maxPageBytes, listBytes: maxListBytes}
	r.metrics = metrics.NewRouter(r.usable)
	r.proxy = newProxy(r.metrics)
	return r, r.readNodes()
}

// ServeHTTP implements http.Handler. It routes by the host name, the header and the path, in the
// same order as the daemons (see package front).
func (r *Router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w = &writer{ResponseWriter: w}
	route, _, below, err := r.cfg.Domain.FindHost(req.Host, req.URL)
	switch id := req.Header.Get(idHeader); {
	case below && err == nil:
		r.toOwner(w, req, route.ID)
	case below && !strings.HasPrefix(strings.ToLower(req.Host), apiLabel):
		fail(w, req, face.NewError(http.StatusNotFound, "host "+req.Host+": "+err.Error()))
	case id != "":
		r.toOwner(w, req, id)
	default:
		r.byPath(w, req)
	}
}

// Parts of E2B's protocol: the header that names a sandbox, the first label of the control plane's
// host name, and the roots of its paths.
const (
	idHeader = "E2b-Sandbox-Id"
	apiLabel = "api."
)

var (
	ofSandbox  = regexp.MustCompile(`^(?:/v1|/v2)?/sandboxes/([^/]+)(?:/.*)?$`)
	ofMove     = regexp.MustCompile(`^/v1/moves/([^/]+)$`)
	ofSnapshot = regexp.MustCompile(`^/v1/snapshots/([^/]+)/info$`)
)

// byPath serves a request at the router's own address.
func (r *Router) byPath(w http.ResponseWriter, req *http.Request) {
	path := req.URL.EscapedPath()
	if m := ofSandbox.FindStringSubmatch(path); m != nil {
		r.toOwner(w, req, m[1])
		return
	}
	switch req.Method + " " + path {
	case "GET /healthz":
		_ = face.WriteJSON(w, req, http.StatusOK, apiv1.Health{OK: true})
	case "GET /readyz":
		r.ready(w, req)
	case "GET /version", "GET /openapi.yaml", "GET /openapi.json", "GET /docs":
		r.toAny(w, req, "")
	case "POST /v1/forks", "POST /v1/sandboxes", "POST /sandboxes", "POST /v2/sandboxes":
		r.create(w, req)
	case "GET /v1/sandboxes":
		r.listed(w, req, r.sandboxKey)
	case "GET /v1/snapshots":
		r.listed(w, req, snapshotKey)
	case "GET /v1/moves":
		r.moves(w, req)
	case "GET /v1/nodes":
		r.nodeList(w, req)
	case "GET /v1/events":
		if list := req.URL.Query()["sandbox"]; r.haveOneOwner(list) {
			r.toOwner(w, req, list[0])
			return
		}
		fail(w, req, &face.NotRoutedError{Reason: "GET /v1/events: only with sandbox=ID, for sandboxes of one node: the " +
			"router does not merge events"})
	default:
		if m := ofSnapshot.FindStringSubmatch(path); m != nil && req.Method == http.MethodGet {
			r.toAny(w, req, m[1])
			return
		}
		if m := ofMove.FindStringSubmatch(path); m != nil && req.Method == http.MethodPost {
			r.step(w, req, m[1])
			return
		}
		fail(w, req, &face.NotRoutedError{Reason: req.Method + " " + req.URL.Path + ": concerns one node"})
	}
}

// haveOneOwner reports whether a list of ids is not empty, and one node has all of its sandboxes.
func (r *Router) haveOneOwner(list []string) bool {
	if len(list) == 0 {
		return false
	}
	first := r.ownerOf(list[0])
	return first != nil && !slices.ContainsFunc(list[1:], func(id string) bool { return r.ownerOf(id) != first })
}

// ready answers whether a node can be used.
func (r *Router) ready(w http.ResponseWriter, req *http.Request) {
	status, answer := http.StatusServiceUnavailable, apiv1.Ready{Reason: "no node answers"}
	for _, n := range r.list() {
		if _, _, err := n.placeable(); err == nil {
			status, answer = http.StatusOK, apiv1.Ready{Ready: true}
			break
		}
	}
	_ = face.WriteJSON(w, req, status, answer)
}

// usable returns for each node whether the router can use it.
func (r *Router) usable() map[string]bool {
	nodes := make(map[string]bool)
	for _, n := range r.list() {
		_, _, err := n.placeable()
		nodes[n.Name] = err == nil
	}
	return nodes
}

// Metrics returns a handler that serves the router's metrics. It checks no token.
func (r *Router) Metrics() http.Handler { return r.metrics.Handler() }

// toAny passes a request on to the first usable node. If tag is not empty, toAny prefers nodes that
// have the snapshot with this tag.
func (r *Router) toAny(w http.ResponseWriter, req *http.Request, tag string) {
	var last error
	var usable *node
	for _, n := range r.list() {
		p, _, err := n.placeable()
		if err != nil {
			last = &face.NodeError{Node: n.Name, Err: err}
			continue
		}
		if tag == "" || p.Has[tag] != placement.Absent {
			r.send(w, req, n)
			return
		}
		usable = n
	}
	if usable != nil { // its daemon says that there is no such snapshot, if the client is allowed to know that
		r.send(w, req, usable)
		return
	}
	fail(w, req, last)
}

// fail answers with an error, in the form of the API that the request is for.
func fail(w http.ResponseWriter, req *http.Request, err error) {
	if req.ContentLength != 0 {
		w.Header().Set("Connection", "close") // the body may not have been read
	}
	if strings.HasPrefix(req.URL.Path, "/sandboxes") || strings.HasPrefix(req.URL.Path, "/v2/") {
		p := face.ProblemOf(err)
		_ = face.WriteJSON(w, req, p.Status, struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		}{p.Status, p.Message})
		return
	}
	face.WriteProblem(w, err)
}
