// Package eval runs code in warm interpreters. It serves the E2B code interpreter protocol
// (/execute, /contexts), keeps one process per context, and informs each process of a fork.
//
// Each process runs a backend: Jupyter's kernel, forkd's own Python interpreter, Node or bash. Each
// backend has a driver script of ours; all drivers speak the same protocol with the agent (see
// backend.go).
//
// If the process of a context exits or hangs, other contexts are not affected, and the context's
// next call restarts the process. The package does not limit the memory of the code. It limits the
// running time of the code only if the call requests a limit. It interrupts code whose client
// disconnects. After a fork of the machine the package informs only the interpreters, and not the
// processes that user code has started. Package generators reseeds the generators of such processes
// if possible.
package eval

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/guest/userenv"
)

// maxContexts bounds the number of contexts that clients can create.
const maxContexts = 64

type Config struct {
	Reaper *reap.Reaper
	Env    *userenv.Env
	Log    *kmsg.Log
}

// Server owns the contexts.
type Server struct {
	cfg Config

	// These fields are variables so that tests can replace them.
	backendOf      func(language string) (*backend, error)
	grace          time.Duration // interruptGrace, except in tests
	abandonedGrace time.Duration

	mu       sync.Mutex
	contexts map[string]*session
	order    []string // ids of the contexts, oldest first
}

// session is a context of the protocol: a namespace for code. The first call starts its process. If
// the process has exited, the next call starts another process.
type session struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`

	backend *backend
	turn    chan struct{} // holds a token while no code runs; a call takes the token to run code

	mu      sync.Mutex
	interp  *interpreter // nil before the first start
	running *running     // nil while no code runs
	note    string       // message to show to the client of the next call
	closed  bool         // the context is deleted; its process must not be restarted
}

// New returns a server with a default context. The first call or Warm starts the context's process.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, backendOf: backendOf, grace: interruptGrace, abandonedGrace: abandonedGrace,
		contexts: map[string]*session{}}
}

// Warm starts the default interpreters, so that a snapshot contains them. It returns their
// languages.
func (s *Server) Warm() ([]string, error) {
	c, err := s.defaultContext(python)
	if err != nil {
		return nil, err
	}
	if _, err := c.live(s.cfg); err != nil {
		return nil, fmt.Errorf("warm %s: %w", python, err)
	}
	// Add Node's context, because clients expect it in the list. But do not start its process,
	// because some of its generators could not be reseeded in a fork.
	_, _ = s.defaultContext(javascript)
	return []string{python}, nil
}

// Forked gives every live interpreter new random numbers and adds the variables in env to the
// interpreter's environment. It returns after all interpreters have confirmed. It fails if an
// interpreter is broken, if a callback of user code failed, or if a call holds the interpreter lock
// for longer than forkTimeout.
//
// Forked does not wake an interpreter in which no code can run before the next call. Before the
// next call runs its code, the call tells the interpreter to apply the numbers and the environment.
// A wake-up here would copy half a megabyte of the interpreter's memory in every forked sandbox,
// even in sandboxes that never use the interpreter.
func (s *Server) Forked(env map[string]string) error {
	return s.control(controlRequest{Op: opForked, Env: env})
}

// SetEnv adds variables to the environment of live interpreters.
func (s *Server) SetEnv(env map[string]string) error {
	return s.control(controlRequest{Op: opEnv, Env: env})
}

// Prepare makes live interpreters cheap to fork; drivers/wire.py describes the request "prepare".
func (s *Server) Prepare() error { return s.control(controlRequest{Op: opPrepare}) }

// Processes returns the process ids of live interpreters, in two lists. By the time Forked returns,
// the interpreters in the first list have reseeded all their generators. The interpreters in the
// second list cannot receive requests while code runs. These interpreters reseed at their next
// call, and do not reseed the generators of their libraries.
func (s *Server) Processes() (renewed, partly []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.order {
		c := s.contexts[id]
		c.mu.Lock()
		if c.interp != nil && !c.interp.dead() {
			if c.backend.listens {
				renewed = append(renewed, c.interp.child.Pid)
			} else {
				partly = append(partly, c.interp.child.Pid)
			}
		}
		c.mu.Unlock()
	}
	return renewed, partly
}

// control sends a request to every live interpreter that needs it now, and then collects the
// answers. An interpreter that can wait receives the request with its next call.
func (s *Server) control(req controlRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	var asked []*session
	for _, id := range s.order {
		c := s.contexts[id]
		c.mu.Lock() // held until the answer arrives, so that no other caller stops the process or sends it a request
		if c.interp == nil || c.interp.dead() || c.interp.putOff(req) {
			c.mu.Unlock()
			continue
		}
		err := c.interp.catchUp()
		if err == nil {
			err = c.interp.sendControl(req)
		}
		if err != nil {
			if !c.interp.endedInstead(err) {
				errs = append(errs, fmt.Errorf("context %s: %w", id, err))
			}
			c.mu.Unlock()
			continue
		}
		asked = append(asked, c)
	}
	for _, c := range asked {
		if err := c.interp.awaitControl(); err != nil && !c.interp.endedInstead(err) {
			errs = append(errs, fmt.Errorf("context %s: %w", c.ID, err))
		}
		// The driver may answer that it is idle while a call's code is still on its way to the
		// driver. But that call has already taken the turn. So the interpreter is idle only if the
		// turn is free too.
		c.interp.idle = c.interp.idle && len(c.turn) == 1
		c.mu.Unlock()
	}
	return errors.Join(errs...)
}

// defaultContext returns the context for calls that name no context.
func (s *Server) defaultContext(language string) (*session, error) {
	s.mu.Lock()
	c := s.contexts[language]
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	return s.create(language, language, "")
}

// errTooMany is returned if a client creates a context beyond maxContexts.
var errTooMany = fmt.Errorf("there are %d contexts; delete one", maxContexts)

// create adds a context. If id is empty, it generates one.
func (s *Server) create(id, language, cwd string) (*session, error) {
	b, err := s.backendOf(language)
	if err != nil {
		return nil, err
	}
	u, err := s.cfg.Env.User("")
	if err != nil {
		return nil, err
	}
	if _, err := b.find(s.cfg.Env.Environ(u, nil)); err != nil {
		return nil, err
	}
	dir, err := s.cfg.Env.Dir(u, cwd)
	if err != nil {
		return nil, err
	}
	if id == "" {
		id = newID()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.contexts[id]; c != nil {
		return c, nil // another call has created the default context in the meantime
	}
	if len(s.contexts) >= maxContexts {
		return nil, errTooMany
	}
	c := &session{ID: id, Language: language, Cwd: dir, backend: b, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	s.contexts[id] = c
	s.order = append(s.order, id)
	return c, nil
}

func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

func (s *Server) get(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contexts[id]
}

func (s *Server) list() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*session, 0, len(s.order))
	for _, id := range s.order {
		out = append(out, s.contexts[id])
	}
	return out
}

// remove deletes a context and kills its process. It reports whether the context existed.
func (s *Server) remove(id string) bool {
	s.mu.Lock()
	c := s.contexts[id]
	delete(s.contexts, id)
	s.order = slices.DeleteFunc(s.order, func(o string) bool { return o == id })
	s.mu.Unlock()
	if c != nil {
		c.kill(true)
	}
	return c != nil
}

// live returns the context's interpreter. It starts an interpreter if there is none, or if the
// interpreter's process has exited.
func (c *session) live(cfg Config) (*interpreter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("context %s was deleted", c.ID)
	}
	if c.interp != nil && !c.interp.dead() {
		return c.interp, nil
	}
	if c.interp != nil {
		death := c.interp.death()
		cfg.Log.Warnf("context %s: %v; starting another", c.ID, death)
		if !c.interp.told {
			c.note = fmt.Sprintf("forkd: %v; its state is lost, this is a new one\n", death)
		}
		c.interp.close()
		c.interp = nil
	}
	u, err := cfg.Env.User("")
	if err != nil {
		return nil, err
	}
	c.interp, err = c.backend.start(cfg.Reaper, cfg.Env, u, c.Cwd)
	return c.interp, err
}

// awake returns the context's interpreter for a call that will run code. It first carries out
// requests that were put off.
func (c *session) awake(cfg Config) (*interpreter, error) {
	interp, err := c.live(cfg)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	interp.idle = !interp.backend.listens
	if err := interp.catchUp(); err != nil {
		// Stop the interpreter, because it may still have the same random numbers as its siblings.
		// The next call starts another interpreter.
		interp.stop()
		return nil, fmt.Errorf("context %s: %w", c.ID, err)
	}
	return interp, nil
}

// kill kills the context's process. If last is true, later calls do not start another process.
func (c *session) kill(last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = c.closed || last
	if c.interp != nil {
		c.interp.stop()
		c.interp = nil
	}
}

// Close ends every context and its process.
func (s *Server) Close() {
	for _, c := range s.list() {
		s.remove(c.ID)
	}
}
