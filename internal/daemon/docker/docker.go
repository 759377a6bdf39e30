// Package docker serves a part of the Docker Engine API, so that Docker's clients work with this
// daemon: the command docker, docker-py, and programs that use them. The API has its own unix
// socket. Its containers and images are the sandboxes and snapshots of /v1.
//
// A container is a sandbox, and an image is a snapshot. Creating a container forks the snapshot. If
// a container was created with a command, the command runs as the main process of the container: a
// process in the guest, which this package starts, follows and stops. A container without a command
// has no main process, and its programs are those that run in the snapshot. A sandbox that another
// API has made is a container without a command.
//
// The package converts Docker's messages to the daemon's operations. It has no policy of its own
// about sandboxes. It refuses each field of a request that asks for a feature that forkd lacks, and
// the error names the field. docs/docker.md lists the differences from Docker.
package docker

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"sync"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// Config configures a Server.
type Config struct {
	Face    *face.Face
	Builds  *build.Builder
	Hub     *hub.Hub // checks credentials for registries
	Dir     string   // directory for the records of containers and names; only this Server uses it
	Version string
}

// Server serves the Docker Engine API.
type Server struct {
	Config
	mux   *http.ServeMux
	book  *book
	tags  *tags
	execs *execs
	feed  *feed

	listeners *gate.Gate // bounds the published ports that are open
	waits     *face.Gate // bounds the requests that wait for the end of a container

	life  context.Context // ends with the cause agentclient.ErrDetached when the daemon stops
	end   context.CancelCauseFunc
	tasks sync.WaitGroup // goroutines that follow processes and events
}

// New returns a Server. It reads the records of containers that an earlier daemon has left, and
// follows their main processes again.
func New(cfg Config) (*Server, error) {
	s := &Server{Config: cfg, mux: http.NewServeMux(), execs: newExecs(), feed: newFeed(),
		listeners: gate.New(maxListeners), waits: face.NewGate(face.Class{Total: cfg.Face.Limits.Reads})}
	var err error
	if s.book, err = openBook(cfg.Dir, cfg.Face.Log); err != nil {
		return nil, err
	}
	s.tags = openTags(filepath.Join(cfg.Dir, "images"), cfg.Face.Log)
	s.life, s.end = context.WithCancelCause(context.Background())
	context.AfterFunc(cfg.Face.Stopping, func() { s.end(agentclient.ErrDetached) })
	s.routes()
	s.adopt()
	s.tidyTags("")
	s.tasks.Go(s.watch)
	return s, nil
}

// Close stops following the processes of containers. The processes continue.
func (s *Server) Close() {
	s.end(agentclient.ErrDetached)
	s.closeAllPorts()
	s.tasks.Wait()
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Face.Audited(http.HandlerFunc(s.serve)).ServeHTTP(w, r)
}

// socketRoute stands for the pattern of a route in the audit log, if a request is refused before it
// is routed.
const socketRoute = "Docker"

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	e := audit.From(r.Context())
	e.Route = socketRoute
	err := s.Face.CheckOrigin(r)
	var who auth.Principal
	if err == nil {
		who, err = s.Face.Guard.Identify(r)
	}
	if e.Who = who.Who; err != nil {
		face.LetGo(w)
		s.fail(w, r, err)
		return
	}
	describe(w.Header())
	r = r.WithContext(auth.With(r.Context(), who))
	if r, err = versioned(r); err != nil {
		s.fail(w, r, err)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// view returns the sandboxes and snapshots that the client of a request may see.
func (s *Server) view(r *http.Request) *tenancy.View { return s.Face.View(r.Context()) }

// route is a row of the table of routes.
type route struct {
	pattern string
	scope   auth.Scope // the scope that the same operation requires in /v1
	gate    *face.Gate
	handle  face.Handler
}

// routes() registers all routes.
func (s *Server) routes() {
	f := s.Face
	for _, routes := range [][]route{s.systemRoutes(f), s.containerRoutes(f), s.execRoutes(f)} {
		for _, rt := range routes {
			s.mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) {
				audit.From(r.Context()).Route = rt.pattern
				if err := auth.From(r.Context()).Need(rt.scope); err != nil {
					s.fail(w, r, err)
					return
				}
				s.resolve(r)
				r, done := f.Memory.Sharing(r)
				defer done()
				rt.gate.Serve(w, r, rt.handle, s.fail)
			})
		}
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { f.Reads.Serve(w, r, s.unserved, s.fail) })
}

// resolve replaces the name of a container in a request by the id of its sandbox, because gates
// count the requests to a sandbox by this id. With a count for each name, a client would have
// separate places for each name and each shortened id of a container. If no container has the name,
// resolve does nothing, and the handler refuses the request.
func (s *Server) resolve(r *http.Request) {
	switch {
	case r.Pattern == "POST /commit":
		r.SetPathValue("id", r.URL.Query().Get("container"))
	case !strings.Contains(r.Pattern, " /containers/{id}"):
		return
	}
	if c, err := s.find(r); err == nil {
		r.SetPathValue("id", c.id)
	}
}

func (s *Server) systemRoutes(f *face.Face) []route {
	return []route{
		{"GET /_ping", auth.Read, f.Reads, s.ping}, // a GET pattern also matches HEAD
		{"GET /version", auth.Read, f.Reads, s.version},
		{"GET /info", auth.Read, f.Reads, s.info},
		{"GET /events", auth.Read, f.Followers, s.events},
		{"POST /auth", auth.Admin, f.Work, s.login}, // as for pulls, because the daemon connects to any registry
		{"GET /images/json", auth.Read, f.Lists, s.listImages},
		{"GET /images/{name...}", auth.Read, f.Reads, s.image},
		{"POST /images/create", auth.Run, f.Work, s.pull},
		{"POST /images/{name...}", auth.Run, f.Work, s.tagImage},
		{"DELETE /images/{name...}", auth.Run, f.Ends, s.removeImage},
		{"POST /images/prune", auth.Admin, f.Ends, s.pruneImages},
		{"POST /commit", auth.Run, f.Work, s.commit},
	}
}

func (s *Server) containerRoutes(f *face.Face) []route {
	return []route{
		{"POST /containers/create", auth.Run, f.Work, s.create},
		{"GET /containers/json", auth.Read, f.Lists, s.list},
		{"GET /containers/{id}/json", auth.Read, f.Reads, s.inspect},
		{"POST /containers/{id}/start", auth.Run, f.Work, s.start},
		{"POST /containers/{id}/stop", auth.Run, f.Work, s.stop},
		{"POST /containers/{id}/restart", auth.Run, f.Work, s.restart},
		{"POST /containers/{id}/kill", auth.Run, f.Control, s.kill},
		{"POST /containers/{id}/wait", auth.Read, s.waits, s.wait},
		{"POST /containers/{id}/pause", auth.Run, f.Work, s.pause},
		{"POST /containers/{id}/unpause", auth.Run, f.Work, s.unpause},
		{"POST /containers/{id}/rename", auth.Run, f.Work, s.rename},
		{"POST /containers/{id}/update", auth.Run, f.Work, s.update},
		{"POST /containers/{id}/resize", auth.Run, f.Control, s.resize},
		{"DELETE /containers/{id}", auth.Run, f.Ends, s.remove},
		{"POST /containers/prune", auth.Run, f.Ends, s.prune},
		{"POST /containers/{id}/attach", auth.Run, f.Guests, s.attach},
		{"GET /containers/{id}/logs", auth.Run, f.Logs, s.logs},
		{"GET /containers/{id}/archive", auth.Run, f.Guests, s.readArchive}, // also serves HEAD
		{"PUT /containers/{id}/archive", auth.Run, f.Guests, s.writeArchive},
		{"GET /containers/{id}/stats", auth.Read, f.Followers, s.stats},
		{"GET /containers/{id}/top", auth.Run, f.Guests, s.top},
	}
}

func (s *Server) execRoutes(f *face.Face) []route {
	return []route{
		{"POST /containers/{id}/exec", auth.Run, f.Control, s.createExec},
		{"POST /exec/{id}/start", auth.Run, f.Carried, s.startExec},
		{"POST /exec/{id}/resize", auth.Run, f.Carried, s.resizeExec},
		{"GET /exec/{id}/json", auth.Run, f.Reads, s.inspectExec},
	}
}
