package eval

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Bounds of a request.
const (
	maxRequest = 32 << 20 // bytes of a request's body
	maxTimeout = 24 * time.Hour
)

// Handler serves the code interpreter protocol. Errors are plain text, as its clients expect.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /execute", s.handleExecute)
	mux.HandleFunc("POST /contexts", s.handleCreate)
	mux.HandleFunc("GET /contexts", s.handleList)
	mux.HandleFunc("POST /contexts/{id}/restart", s.handleRestart)
	mux.HandleFunc("POST /contexts/{id}/interrupt", s.handleInterrupt)
	mux.HandleFunc("DELETE /contexts/{id}", s.handleDelete)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("OK")) })
	return mux
}

func (s *Server) handleExecute(w http.ResponseWriter, r *http.Request) {
	var req agentproto.ExecuteRequest
	if !decode(w, r, &req) {
		return
	}
	c, status, err := s.find(req)
	if err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	if req.TimeoutMS < 0 || req.TimeoutMS > maxTimeout.Milliseconds() {
		http.Error(w, fmt.Sprintf("timeout_ms %d: want 0 to %d", req.TimeoutMS, maxTimeout.Milliseconds()),
			http.StatusBadRequest)
		return
	}
	if err := userenv.CheckVars(req.Env); err != nil {
		http.Error(w, "env_vars: "+err.Error(), http.StatusBadRequest)
		return
	}
	timeout := time.Duration(req.TimeoutMS) * time.Millisecond
	flush := http.NewResponseController(w)
	started := false
	err = s.execute(r.Context(), c, runRequest{Code: req.Code, Env: req.Env, Repr: req.Repr}, timeout, func(line []byte) {
		if !started {
			started = true
			w.Header().Set("Content-Type", "application/x-ndjson")
		}
		// A failed write needs no handling, because the request's context ends when the client
		// disconnects.
		_, _ = w.Write(append(line[:len(line):len(line)], '\n'))
		_ = flush.Flush()
	})
	var busy *busyError
	switch {
	case err == nil:
	case errors.As(err, &busy):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.As(err, new(*unsupportedError)):
		s.remove(c.ID) // the interpreter did not start, and cannot start later
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// find returns the context that a request names. If it returns an error, it also returns the HTTP
// status of the answer.
func (s *Server) find(req agentproto.ExecuteRequest) (*session, int, error) {
	if req.ContextID != "" && req.Language != "" {
		return nil, http.StatusBadRequest, errors.New("context_id and language exclude each other; send one")
	}
	if req.ContextID != "" {
		if c := s.get(req.ContextID); c != nil {
			return c, 0, nil
		}
		return nil, http.StatusNotFound, fmt.Errorf("context %q does not exist", req.ContextID)
	}
	c, err := s.defaultContext(languageOf(req.Language))
	return c, http.StatusBadRequest, err
}

func (s *Server) handleCreate(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Language string `json:"language"`
		Cwd      string `json:"cwd"`
	}
	if !decode(w, r, &req) {
		return
	}
	c, err := s.create("", languageOf(req.Language), req.Cwd)
	switch {
	case errors.Is(err, errTooMany):
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		if _, err := c.live(s.cfg); err != nil {
			s.remove(c.ID)
			status := http.StatusInternalServerError
			if errors.As(err, new(*unsupportedError)) {
				status = http.StatusBadRequest
			}
			http.Error(w, err.Error(), status)
			return
		}
		encode(w, c)
	}
}

func (s *Server) handleList(w http.ResponseWriter, _ *http.Request) { encode(w, s.list()) }

func (s *Server) handleRestart(w http.ResponseWriter, r *http.Request) {
	c := s.get(r.PathValue("id"))
	if c == nil {
		http.Error(w, fmt.Sprintf("context %q does not exist", r.PathValue("id")), http.StatusNotFound)
		return
	}
	c.kill(false)
	if _, err := c.live(s.cfg); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// handleInterrupt interrupts the running code once. The code may catch the interrupt and continue.
// Only a restart ends the code for certain.
func (s *Server) handleInterrupt(w http.ResponseWriter, r *http.Request) {
	c := s.get(r.PathValue("id"))
	if c == nil {
		http.Error(w, fmt.Sprintf("context %q does not exist", r.PathValue("id")), http.StatusNotFound)
		return
	}
	c.mu.Lock()
	code := c.running
	c.mu.Unlock()
	encode(w, map[string]bool{"interrupted": code != nil && code.signal(syscall.SIGINT)})
}

func (s *Server) handleDelete(w http.ResponseWriter, r *http.Request) {
	if !s.remove(r.PathValue("id")) {
		http.Error(w, fmt.Sprintf("context %q does not exist", r.PathValue("id")), http.StatusNotFound)
	}
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(into)
	if err != nil {
		http.Error(w, "request body: "+err.Error(), http.StatusBadRequest)
	}
	return err == nil
}

func encode(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has disconnected
}
