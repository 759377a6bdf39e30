package envd

import (
	"errors"
	"io"
	"net/http"

	"github.com/forkd/forkd/internal/guest/apply"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// handleApply applies the archive of a merge. forkd adds this route to E2B's protocol.
func (s *Server) handleApply(w http.ResponseWriter, r *http.Request) {
	n, err := s.cfg.Tree.Apply(r.Body)
	if err != nil {
		_, _ = io.Copy(io.Discard, r.Body) // without this, a client that still writes would not read the answer
	}
	answer := agentproto.Applied{Files: n}
	var changed *apply.ChangedError
	var incomplete *apply.IncompleteError
	switch {
	case errors.As(err, &incomplete):
		s.cfg.Log.Errorf("apply: %v", err)
		answer.Incomplete, answer.Error = true, err.Error()
	case errors.As(err, &changed):
		answer.Changed, answer.Error = changed.Paths, err.Error()
	case errors.Is(err, apply.ErrBusy):
		fail(w, httpFailure{http.StatusConflict, err})
		return
	case err != nil:
		fail(w, err)
		return
	}
	writeJSON(w, answer)
}
