// Package eval runs code in warm interpreters: it serves the E2B code interpreter protocol
// (/execute, /contexts), keeps one process per context, and informs each of them of a fork.
//
// The process runs a backend: Jupyter's kernel, forkd's own Python interpreter, Node or bash, each
// with a driver of ours that speaks one protocol with the agent (see backend.go).
//
// A context is a process: if it dies or hangs, others are unaffected, and the next call restarts
// it. The package does not limit the memory of the code, nor its time unless the call requests
// that. It interrupts code whose client disconnects. Processes that user code forks from an
// interpreter are not informed of a fork of the machine; package generators reseeds those of their
// generators that it can.
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

// maxContexts bounds the contexts that clients may create.
const maxContexts = 64

// Config is what a Server works with.
type Config struct {
	Reaper *reap.Reaper
	Env    *userenv.Env
	Log    *kmsg.Log
}

// Server owns the contexts.
type Server struct {
	cfg Config

	// The function and the constants of the same names, except in tests.
	backendOf      func(language string) (*backend, error)
	grace          time.Duration // interruptGrace
	abandonedGrace time.Duration

	mu       sync.Mutex
	contexts map[string]*session
	order    []string // ids, oldest first
}

// session is a context of the protocol: a namespace for code. The first call starts its process,
// and a later one restarts it after it has died.
type session struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`

	backend *backend
	turn    chan struct{} // holds a token while no code runs

	mu      sync.Mutex
	interp  *interpreter // nil before the first start
	running *running     // nil while no code runs
	note    string       // message for the client of the next call
	closed  bool         // deleted; must not be restarted
}

// New returns a server whose default context has no process yet.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, backendOf: backendOf, grace: interruptGrace, abandonedGrace: abandonedGrace,
		contexts: map[string]*session{}}
}

// Warm starts the default interpreters, so that a snapshot contains them, and returns their
// languages.
func (s *Server) Warm() ([]string, error) {
	c, err := s.defaultContext(python)
	if err != nil {
		return nil, err
	}
	if _, err := c.live(s.cfg); err != nil {
		return nil, fmt.Errorf("warm %s: %w", python, err)
	}
	// Node starts with the first call, because not all of its generators could be reseeded in a
	// fork. If Node is available, clients still expect its context in the list.
	_, _ = s.defaultContext(javascript)
	return []string{python}, nil
}

// Forked makes every live interpreter take up the identity of a new copy, and adds env to its
// environment. It returns after all have confirmed. It fails if an interpreter cannot: because the
// interpreter is broken, because a callback of user code failed, or because a call holds the
// interpreter lock for longer than forkTimeout.
//
// An interpreter in which no code can run before the next call is left asleep, and the next call
// makes it take up the identity first. Waking it now would copy half a megabyte of its memory in
// every child, even in those that never use it.
func (s *Server) Forked(env map[string]string) error {
	return s.control(controlRequest{Op: opForked, Env: env})
}

// SetEnv adds variables to the environment of live interpreters.
func (s *Server) SetEnv(env map[string]string) error {
	return s.control(controlRequest{Op: opEnv, Env: env})
}

// Prepare makes live interpreters cheap to fork: see "prepare" in drivers/wire.py.
func (s *Server) Prepare() error { return s.control(controlRequest{Op: opPrepare}) }

// Processes returns the live interpreters. Those in renewed reseed all their generators after
// Forked. Those in partly cannot listen while code runs: they reseed at their next call, except for the
// generators of their libraries.
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

// control sends a request to every live interpreter for which the request cannot be put off, and
// then collects the answers.
func (s *Server) control(req controlRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	var asked []*session
	for _, id := range s.order {
		c := s.contexts[id]
		c.mu.Lock() // until its answer, so that no other caller stops the process or sends it a request
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
		// The driver may not have seen code that is on its way, but the sender of that code has taken the
		// turn.
		c.interp.idle = c.interp.idle && len(c.turn) == 1
		c.mu.Unlock()
	}
	return errors.Join(errs...)
}

// defaultContext returns the context for calls that name none.
func (s *Server) defaultContext(language string) (*session, error) {
	s.mu.Lock()
	c := s.contexts[language]
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	return s.create(language, language, "")
}

// errTooMany refuses another context.
var errTooMany = fmt.Errorf("there are %d contexts; delete one", maxContexts)

// create adds a context; for an empty id it generates one.
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
		return c, nil // the default context, made by another call in the meantime
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

// remove deletes a context and kills its process; it reports whether there was one.
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

// live returns the context's interpreter, starting one if there is none or it has died.
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

// awake is live for a caller that will run code: the interpreter has carried out requests that were
// put off.
func (c *session) awake(cfg Config) (*interpreter, error) {
	interp, err := c.live(cfg)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	interp.idle = !interp.backend.listens
	if err := interp.catchUp(); err != nil {
		// The interpreter may still have its siblings' random numbers; the next call starts another one.
		interp.stop()
		return nil, fmt.Errorf("context %s: %w", c.ID, err)
	}
	return interp, nil
}

// kill kills the context's process. The next call starts a new one unless last is set.
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
