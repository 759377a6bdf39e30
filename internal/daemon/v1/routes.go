// Package v1 is the daemon's REST API, described by api/openapi.yaml: JSON over HTTP on a sandbox.Manager.
//
// It translates, checks and limits; it decides nothing about sandboxes. Request bodies are strict (an unknown field is
// an error that names it), every error is {"error": "..."} with a status from errors.go, and everything a client can
// make large is bounded by the constants below.
package v1

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/audit"
	"github.com/forkd/forkd/internal/auth"
	"github.com/forkd/forkd/internal/sandbox"
)

// Limits on requests.
const (
	maxBody      = 2 << 20 // bytes of a JSON body
	maxUpload    = 1 << 30 // bytes of an uploaded file
	maxOutput    = 8 << 20 // bytes kept of stdout and of stderr
	maxArgs      = 4096    // arguments of a command
	maxExec      = time.Hour
	defaultExec  = 30 * time.Second
	maxCalls     = 512 // requests served at once
	maxBoot      = 3600 * time.Second
	maxPingDelay = 10 * time.Second
)

// Config is what the API serves.
type Config struct {
	Manager *sandbox.Manager
	Metrics http.Handler
	Token   auth.Token
	Hosts   []string   // names of this host that clients without a token may use, besides those of loopback
	Audit   *audit.Log // nil: none
	Version string
	Accel   string
	Log     *slog.Logger
}

type api struct {
	Config
	calls chan struct{}
}

// New returns the handler of the API.
func New(cfg Config) http.Handler {
	a := &api{Config: cfg, calls: make(chan struct{}, maxCalls)}
	mux := http.NewServeMux()
	handle := func(pattern string, h func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				a.fail(w, r, err)
			}
		})
	}
	handle("GET /healthz", a.healthz)
	handle("GET /healthz/{$}", a.healthz)
	handle("GET /version", a.version)
	mux.Handle("GET /metrics", cfg.Metrics)
	handle("GET /v1/snapshots", a.listSnapshots)
	handle("POST /v1/snapshots", a.createSnapshot)
	handle("DELETE /v1/snapshots/{tag}", a.deleteSnapshot)
	handle("GET /v1/snapshots/{tag}/info", a.snapshotInfo)
	handle("POST /v1/snapshots/{tag}/compact", a.compactSnapshot)
	handle("POST /v1/snapshots/{tag}/verify", a.verifySnapshot)
	handle("GET /v1/sandboxes", a.listSandboxes)
	handle("POST /v1/sandboxes", a.createSandboxes)
	handle("GET /v1/sandboxes/{id}", a.getSandbox)
	handle("DELETE /v1/sandboxes/{id}", a.deleteSandbox)
	handle("POST /v1/sandboxes/{id}/ping", a.ping)
	handle("POST /v1/sandboxes/{id}/exec", a.exec)
	handle("POST /v1/sandboxes/{id}/eval", a.eval)
	handle("GET /v1/sandboxes/{id}/stats", a.stats)
	handle("GET /v1/sandboxes/{id}/console", a.console)
	handle("GET /v1/sandboxes/{id}/files", a.readFile)
	handle("PUT /v1/sandboxes/{id}/files", a.writeFile)
	handle("POST /v1/sandboxes/{id}/branch", a.branch)
	handle("POST /v1/sandboxes/{id}/rollback", a.rollback)
	handle("POST /v1/sandboxes/{id}/pause", a.onSandbox(a.pause))
	handle("POST /v1/sandboxes/{id}/resume", a.onSandbox(a.resume))
	handle("POST /v1/sandboxes/{id}/suspend", a.onSandbox(a.suspend))
	handle("GET /v1/workspaces", a.listWorkspaces)
	handle("POST /v1/workspaces", a.createWorkspace)
	handle("GET /v1/workspaces/{name}", a.getWorkspace)
	handle("DELETE /v1/workspaces/{name}", a.deleteWorkspace)
	handle("POST /v1/workspaces/{name}/suspend", a.suspendWorkspace)
	handle("POST /v1/workspaces/{name}/resume", a.resumeWorkspace)
	handle("/", func(w http.ResponseWriter, r *http.Request) error { return unknownRoute(mux, r) })
	return a.audited(a.limited(a.knownHost(a.sameOrigin(a.authorized(mux)))))
}

// knownHost refuses requests over TCP that carry another host's name, unless they need a token. See auth.CheckHost.
func (a *api) knownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if ok && addr.Network() == "tcp" && !a.Token.IsSet() {
			if err := auth.CheckHost(r.Host, a.Hosts); err != nil {
				writeError(w, http.StatusForbidden, err.Error())
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// sameOrigin refuses what a web page of another origin makes a browser on this host send: a daemon on loopback without
// a token would obey it. Programs send no Origin and are not concerned; a token protects against the rest.
func (a *api) sameOrigin(next http.Handler) http.Handler {
	p := http.NewCrossOriginProtection()
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusForbidden, "cross-origin request from a browser refused")
	}))
	return p.Handler(next)
}

// authorized demands the token of everything but the health check.
func (a *api) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := strings.TrimSuffix(r.URL.Path, "/"); p != "/healthz" {
			if err := a.Token.Check(r); err != nil {
				w.Header().Set("WWW-Authenticate", "Bearer")
				writeError(w, http.StatusUnauthorized, err.Error())
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// limited bounds the requests that are served at once; more are turned away instead of queued.
func (a *api) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case a.calls <- struct{}{}:
			defer func() { <-a.calls }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			writeError(w, http.StatusServiceUnavailable, "too many requests at once; try again")
		}
	})
}

// audited writes a line per request, refused ones too.
func (a *api) audited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		defer func() { a.record(start, r, rec.status) }() // also when the handler aborts the connection
		next.ServeHTTP(rec, r)
	})
}

func (a *api) record(start time.Time, r *http.Request, status int) {
	remote := r.RemoteAddr
	if remote == "@" { // net/http's name for a unix socket's peer
		remote = ""
	}
	err := a.Audit.Write(audit.Entry{
		Time: start, Method: r.Method, Path: r.URL.Path, Status: status,
		LatencyUS: time.Since(start).Microseconds(), UserAgent: r.UserAgent(), Remote: remote,
	})
	if err != nil {
		a.Log.Error("audit", "error", err)
	}
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (a *api) healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]bool{"ok": true})
}

func (a *api) version(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"version": a.Version, "api": "v1", "accel": a.Accel})
}
