// Package eval runs code in warm interpreters: it serves the E2B code interpreter protocol
// (/execute, /contexts), keeps one process per context, and passes a fork on to each of them.
//
// What runs in the process is a backend: Jupyter's kernel, forkd's own Python interpreter, Node or
// bash, each with a driver of ours that speaks one protocol with the agent (see backend.go).
//
// A context is a process: one that dies or hangs harms no other, and is started again by the next
// call. The package does not limit the memory of the code, nor its time unless the call asks for
// that; it interrupts code whose client goes away. Processes that user code forks from an
// interpreter are not told of a fork of the machine; package generators reseeds what it can of theirs.
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

// maxContexts bounds the processes that clients may ask for.
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

	// The function and the constants of the same names, but in tests.
	backendOf      func(language string) (*backend, error)
	grace          time.Duration // interruptGrace
	abandonedGrace time.Duration

	mu       sync.Mutex
	contexts map[string]*session
	order    []string // ids, oldest first
}

// session is a context of the protocol: one namespace of code. Its process is started by the first
// call and again after it has died.
type session struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`

	backend *backend
	turn    chan struct{} // holds a token while no code runs

	mu      sync.Mutex
	interp  *interpreter // nil before the first start
	running *running     // nil while no code runs
	note    string       // what the client of the next call must know
	closed  bool         // deleted; must not start again
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
	// Node starts with the first call: nobody could reseed all of its generators in a fork. Clients
	// expect its context in the list all the same, where there is one.
	_, _ = s.defaultContext(javascript)
	return []string{python}, nil
}

// Forked makes every live interpreter take up the identity of a new copy, adding env to its
// environment. It returns after all have confirmed, and fails if one cannot: because it is broken,
// because a callback of user code failed, or because it is in a call that keeps the interpreter
// lock for longer than forkTimeout.
//
// An interpreter in which no code can run before the next call is left asleep: that call does it
// first. Waking it would copy half a megabyte of its memory in every child, also in those that
// never use it.
func (s *Server) Forked(env map[string]string) error {
	return s.control(controlRequest{Op: opForked, Env: env})
}

// SetEnv adds variables to the environment of live interpreters.
func (s *Server) SetEnv(env map[string]string) error {
	return s.control(controlRequest{Op: opEnv, Env: env})
}

// Prepare makes live interpreters cheap to fork: see "prepare" in drivers/wire.py.
func (s *Server) Prepare() error { return s.control(controlRequest{Op: opPrepare}) }

// Processes returns the live interpreters. Those of renewed reseed all their generators when Forked
// has told them. Those of partly, which cannot listen while code runs, reseed with their next call,
// and then not what their libraries keep.
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

// control sends a request to every live interpreter that must not sleep on, then collects the
// answers.
func (s *Server) control(req controlRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	var asked []*session
	for _, id := range s.order {
		c := s.contexts[id]
		c.mu.Lock() // until its answer: nobody may stop the process or ask it something else
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
		// A line of code may be on its way that the driver has not seen; whoever sends one takes
		// the turn first.
		c.interp.idle = c.interp.idle && len(c.turn) == 1
		c.mu.Unlock()
	}
	return errors.Join(errs...)
}

// defaultContext returns the context of calls that name none.
func (s *Server) defaultContext(language string) (*session, error) {
	s.mu.Lock()
	c := s.contexts[language]
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	return s.create(language, language, "")
}

// errTooMany refuses a further context.
var errTooMany = fmt.Errorf("there are %d contexts; delete one", maxContexts)

// create adds a context; the empty id asks for a random one.
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
		return c, nil // the default context, made by another call meanwhile
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

// remove deletes a context and ends its process; it reports whether there was one.
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

// awake is live for a caller that is about to run code: the interpreter has caught up with what was
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
		// It may still have the random numbers of its siblings; the next call starts another.
		interp.stop()
		return nil, fmt.Errorf("context %s: %w", c.ID, err)
	}
	return interp, nil
}

// kill ends the context's process. The next call starts a new one unless last is set.
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
