package docker

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// waitResult is the end of a container, for the client that waits for it.
type waitResult struct {
	StatusCode int
	Error      *struct{ Message string } `json:",omitempty"`
}

// wait answers when a container has exited or is removed. Docker's client sends this request before
// it starts the container, and needs the beginning of the answer before the start.
func (s *Server) wait(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	condition := r.URL.Query().Get("condition")
	switch condition {
	case "", "not-running", "next-exit", "removed":
	default:
		return face.BadRequest("condition: %.100q: want not-running, next-exit or removed", condition)
	}
	before, _, _ := c.now()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	if rc.Flush() != nil {
		return nil
	}
	ctx, cancel := face.WhileConnected(r.Context())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	code, err := s.waitFor(ctx, &c, condition, before)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has left, or must not take the daemon's stop for the container's end
	}
	_ = rc.SetWriteDeadline(time.Now().Add(s.Face.Limits.Stall)) // fails only in tests
	_ = json.NewEncoder(w).Encode(waitResult{StatusCode: code})  // fails only if the client has left
	return nil
}

// waitFor waits for the end of a container, and returns its exit code. Its last argument is the
// container's state at the time of the request.
func (s *Server) waitFor(ctx context.Context, c *found, condition string, before state) (int, error) {
	view := s.Face.View(ctx)
	for {
		st, gone, changed := c.now()
		i, err := view.Sandbox(c.id)
		var missing *sandbox.NotFoundError
		if errors.As(err, &missing) {
			gone = true
		}
		ends := statusOf(st, i) == exited
		switch condition {
		case "removed":
			ends = false
		case "next-exit":
			ends = ends && (st.Status == "" || !st.Finished.Equal(before.Finished))
		case "", "not-running":
			ends = ends || statusOf(st, i) == created
		}
		if gone || ends {
			return st.ExitCode, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// sweepEvery is the interval of searches for containers without a sandbox. Such a container can
// exist: a request that lists sandboxes can add a container while the container's sandbox is being
// deleted.
const sweepEvery = time.Minute

// watch follows the events of sandboxes: it forgets the containers of deleted sandboxes, and wakes
// the clients that wait for a container. It also removes the names of deleted snapshots.
func (s *Server) watch() {
	events := s.Face.Host.For(owner.Owner{Name: owner.Anyone}).Events("")
	for {
		ctx, cancel := context.WithTimeout(s.life, sweepEvery)
		e, missed, err := events.Next(ctx)
		cancel()
		switch {
		case s.life.Err() != nil:
			return // the daemon stops
		case missed:
			s.sweep()
			s.tidyTags("")
		case err != nil:
			s.sweep()
		case e.Kind == event.SnapshotDeleted, e.Kind == event.SnapshotCreated:
			s.tidyTags(e.Snapshot)
		case e.Kind == event.SandboxDeleted:
			s.forget(e.Sandbox)
		case e.Sandbox != "":
			for _, c := range s.book.list() {
				if c.id == e.Sandbox {
					s.changed(c, e.Kind == event.SandboxSuspended || e.Kind == event.SandboxExited)
				}
			}
		}
	}
}

// changed wakes the clients that wait for a container. If the sandbox is suspended or has ended, it
// also moves the output of the container to a file, because such a container must not take memory
// of the host.
func (s *Server) changed(c *container, isAtRest bool) {
	c.notify()
	if !isAtRest {
		return
	}
	if err := c.out.store(); err != nil {
		s.Face.Log.Error("output of a container is lost", "sandbox", c.id, "error", err)
	}
}

// forget drops a container whose sandbox has been deleted.
func (s *Server) forget(id string) {
	s.execs.drop(id)
	c, err := s.book.drop(id)
	if err != nil {
		s.Face.Log.Error("remove the record of a container", "sandbox", id, "error", err)
	}
	if c != nil {
		c.closePorts()
		s.event("destroy", c, sandbox.Info{ID: id, State: sandbox.Stopping})
	}
}

// sweep forgets the containers whose sandboxes do not exist.
func (s *Server) sweep() {
	// Read the book first. A container enters the book after its sandbox has been made. So if the
	// sandbox of a container in this list does not exist now, it has been deleted.
	list, states := s.book.list(), map[string]sandbox.State{}
	for _, i := range s.Face.Host.For(owner.Owner{Name: owner.Anyone}).Sandboxes() {
		states[i.ID] = i.State
	}
	for _, c := range list {
		state, ok := states[c.id]
		if !ok {
			s.forget(c.id)
		}
		s.changed(c, state == sandbox.Suspended || state == sandbox.Exited)
	}
}

// adopt takes over the containers of an earlier daemon: it follows their main processes, opens
// their ports, and suspends the sandboxes of exited containers.
func (s *Server) adopt() {
	s.sweep()
	for _, c := range s.book.list() {
		st, _, _ := c.now()
		view := s.Face.Host.For(owner.Owner{Name: owner.Anyone})
		i, err := view.Sandbox(c.id)
		if err != nil {
			continue
		}
		sp := specOf(i)
		if st.Status == running {
			s.adoptPorts(c, i.Owner, &sp)
		}
		switch {
		case st.Status == exited && sp.Host.AutoRemove && !st.Restarts &&
			!st.Finished.IsZero(): // a damaged record lacks this time, and then the container stays
			s.tasks.Go(func() { s.removeExited(c, view) })
		case st.Status == exited && len(sp.args()) > 0:
			s.suspendLater(c, view)
		case st.Status == running && len(sp.args()) > 0:
			p := newProcess(c.id, view, c.out, sp.Config.TTY, nil)
			c.main = p
			s.follow(p, st.PID, sp.args(), func(pid uint32) { s.note(c, func(s *state) { s.PID = pid }) },
				func() { s.mainEnded(c, p, &sp) })
		}
	}
}
