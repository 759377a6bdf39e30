package v1

import (
	"net/http"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/inbound"
)

// Server is the API, and what another API on the same listeners shares with it: the limits of
// streams to guests, and how errors become statuses.
type Server struct {
	http.Handler
	api *api
}

// Done counts a request that was served, by its audit entry; err is that of writing the entry.
func (s *Server) Done(e audit.Entry, err error) { s.api.done(e, err) }

// Fail answers a request that has not been answered, because of an error.
type Fail func(w http.ResponseWriter, r *http.Request, route inbound.Route, err error)

// CarryHTTP carries a request, which somebody has permitted, to a port of a sandbox.
func (s *Server) CarryHTTP(w http.ResponseWriter, r *http.Request, route inbound.Route, fail Fail) {
	s.api.carryHTTP(w, r, route, fail)
}

// Once lets a request that makes something be sent again with its Idempotency-Key, as those of /v1.
func (s *Server) Once(f func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return s.api.once(f)
}

// StatusOf chooses the HTTP status of an error of the sandbox manager or the store.
func StatusOf(err error) int { return problemOf(err).Status }
