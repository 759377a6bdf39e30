// Package envd serves the E2B envd protocol in the guest. Processes and files are served over
// Connect RPC with the JSON codec, and the contents of files over plain HTTP.
//
// A request names a user of the guest. Processes run as that user. File operations run as the
// agent, and give new files to the user. The user is a convenience and not a security boundary,
// because every client of this service can name root. The package does not compress answers and
// keeps no output for later clients. It does not kill the processes of a client when the client
// disconnects.
package envd

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/forkd/forkd/internal/guest/apply"
	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/envdproto/filesystem/filesystemconnect"
	"github.com/forkd/forkd/internal/proto/envdproto/process/processconnect"
)

// Bounds on requests, in bytes.
const (
	maxMessage = 8 << 20 // one RPC message
	maxInit    = 1 << 20 // the body of /init
)

// defaultKeepalive is the default interval of keepalive events.
const defaultKeepalive = 90 * time.Second

// Config configures a Server.
type Config struct {
	Reaper *reap.Reaper
	Env    *userenv.Env
	Log    *kmsg.Log
	OnEnv  func(map[string]string) error // called with the variables that /init adds
	Tree   *apply.Tree                   // file system for POST /apply
}

// Server is the envd of one guest.
type Server struct {
	cfg   Config
	procs *table
	cpu   cpuMeter

	mu    sync.Mutex
	token string // access token that requests must contain; empty: none
}

func New(cfg Config) *Server {
	return &Server{cfg: cfg, procs: newTable()}
}

// Handler serves the protocol.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	opts := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessage),
		connect.WithCompression("gzip", nil, nil), // no compression, because the SDKs refuse compressed replies
	}
	mux.Handle(processconnect.NewProcessHandler(&processService{s}, opts...))
	mux.Handle(filesystemconnect.NewFilesystemHandler(&filesystemService{s: s, watchers: newWatchers()}, opts...))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /files", s.handleRead)
	mux.HandleFunc("POST /files", s.handleWrite)
	mux.HandleFunc("GET /archive", s.handlePack)
	mux.HandleFunc("POST /archive", s.handleUnpack)
	mux.HandleFunc("POST /apply", s.handleApply)
	mux.HandleFunc("GET /envs", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.cfg.Env.Vars()) })
	mux.HandleFunc("GET /metrics", s.handleMetrics)
	mux.HandleFunc("POST /init", s.handleInit)
	return s.authenticate(mux)
}

// authenticate refuses requests without the access token, if one is set. It lets requests to
// /health and /files pass. The handler of /files checks its requests itself, because a request by a
// signed URL does not have the header with the token.
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := s.accessToken()
		open := r.URL.Path == "/health" || r.URL.Path == "/files"
		if token == "" || open || equal(r.Header.Get("X-Access-Token"), token) {
			next.ServeHTTP(w, r)
			return
		}
		writeError(w, http.StatusUnauthorized, "X-Access-Token is missing or wrong")
	})
}

func (s *Server) accessToken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// handleInit sets the values that a client gives when it creates a sandbox. It ignores fields that
// only E2B's own hosts use.
func (s *Server) handleInit(w http.ResponseWriter, r *http.Request) {
	var req struct {
		EnvVars        map[string]string `json:"envVars"`
		AccessToken    *string           `json:"accessToken"`
		DefaultUser    string            `json:"defaultUser"`
		DefaultWorkdir string            `json:"defaultWorkdir"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInit)).Decode(&req); err != nil {
		writeError(w, http.StatusBadRequest, "request body: "+err.Error())
		return
	}
	if req.DefaultUser != "" {
		if _, err := s.cfg.Env.User(req.DefaultUser); err != nil {
			writeError(w, http.StatusBadRequest, "defaultUser: "+err.Error())
			return
		}
	}
	if err := userenv.CheckVars(req.EnvVars); err != nil {
		writeError(w, http.StatusBadRequest, "envVars: "+err.Error())
		return
	}
	s.cfg.Env.SetDefaults(req.DefaultUser, req.DefaultWorkdir)
	s.cfg.Env.Merge(req.EnvVars)
	if len(req.EnvVars) > 0 {
		if err := s.cfg.OnEnv(req.EnvVars); err != nil {
			writeError(w, http.StatusInternalServerError, "envVars: "+err.Error())
			return
		}
	}
	if req.AccessToken != nil {
		s.mu.Lock()
		s.token = *req.AccessToken
		s.mu.Unlock()
	}
	w.WriteHeader(http.StatusNoContent)
}

// rpcUser returns the user in a request's basic authentication.
func (s *Server) rpcUser(h http.Header) (*userenv.User, error) {
	name := ""
	if auth := h.Get("Authorization"); auth != "" {
		r := http.Request{Header: h}
		user, _, ok := r.BasicAuth()
		if !ok && strings.HasPrefix(auth, "Basic ") {
			return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("the Authorization header is malformed"))
		}
		name = user
	}
	u, err := s.cfg.Env.UserOr(name, h.Get(agentproto.DefaultUserHeader))
	if err != nil {
		return nil, connect.NewError(connect.CodeUnauthenticated, err)
	}
	return u, nil
}

// keepalive returns the interval at which a client wants keepalive events. The header contains it
// in seconds.
func keepalive(h http.Header) time.Duration {
	if d, err := time.ParseDuration(h.Get("Keepalive-Ping-Interval") + "s"); err == nil && d >= time.Second {
		return d
	}
	return defaultKeepalive
}

// streamEvents sends events to a client until the channel is closed. If no event arrives during the
// given interval, it sends a keepalive. It returns early when the client has disconnected or its
// deadline has passed.
func streamEvents[E any](ctx context.Context, events <-chan E, interval time.Duration, send func(E) error,
	alive func() error) error {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		var err error
		select {
		case ev, ok := <-events:
			if !ok {
				return nil
			}
			err = send(ev)
		case <-timer.C:
			err = alive()
		case <-ctx.Done():
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		timer.Reset(interval)
	}
}

func invalid(err error) error { return connect.NewError(connect.CodeInvalidArgument, err) }

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has disconnected
}

func writeError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": status, "message": message})
}
