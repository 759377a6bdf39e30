package docker

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// Time limits of stops, and the time before a suspension.
const (
	stopTimeout = 10               // default time between the stop signal and SIGKILL, in seconds
	maxStop     = 24 * 3600        // maximum of this time, in seconds
	killTime    = 30 * time.Second // time for the end of a process after SIGKILL

	// After its main process has ended, a container's sandbox runs for this time, so clients can
	// copy its files without a delay. Then the sandbox is suspended and takes no memory.
	suspendAfter = time.Minute
)

// start starts the main process of a container.
func (s *Server) start(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Query().Get("checkpoint") != "" {
		return unsupported("checkpoint", "create the container from an image that docker commit has made")
	}
	c, unlock, err := s.findLocked(r)
	if err != nil {
		return err
	}
	defer unlock()
	sp := specOf(c.info)
	s.setRestarts(c.container, &sp, false) // resets a mark that an earlier daemon left if it ended during a restart
	did, err := s.startLocked(r.Context(), s.view(r), c.container)
	return answerChange(w, did, err)
}

// answerChange answers a request to start or stop a container. If did is false, the container
// already had the wanted status, and the answer is 304, as in Docker.
func answerChange(w http.ResponseWriter, did bool, err error) error {
	switch {
	case err != nil:
		return err
	case did:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNotModified)
	}
	return nil
}

// startLocked starts a container, and reports whether this call has started it: false if it was
// already running. The caller holds the container's lock.
func (s *Server) startLocked(ctx context.Context, view *tenancy.View, c *container) (did bool, err error) {
	i, err := view.Sandbox(c.id)
	if err != nil {
		return false, noContainer(containerID(c.id))
	}
	st, _, _ := c.now()
	switch statusOf(st, i) {
	case running:
		return false, nil
	case paused:
		return false, conflict("cannot start a paused container, try unpause instead")
	}
	c.keepRunning()
	if i.State != sandbox.Running {
		if i, err = view.Resume(ctx, c.id); err != nil {
			return false, err
		}
	}
	sp := specOf(i)
	if err := s.openPorts(c, i.Owner, &sp); err != nil {
		return false, err
	}
	switch args := sp.args(); {
	case len(args) > 0:
		err = s.startMain(view, c, &sp, args)
	case st.Status != "": // otherwise the sandbox of another API runs again
		s.note(c, func(s *state) {
			s.Status, s.ExitCode, s.Error, s.Started, s.Finished = running, 0, "", time.Now(), time.Time{}
		})
	}
	if err != nil {
		c.closePorts()
		return false, err
	}
	s.event("start", c, i)
	return true, nil
}

// startMain starts the main process of a container.
func (s *Server) startMain(view *tenancy.View, c *container, sp *spec, args []string) error {
	if c.process() != nil {
		return conflict("Container %s is still running", containerID(c.id))
	}
	p := newProcess(c.id, view, c.out, sp.Config.TTY, nil)
	// Write the record before the start. If the record were written later and this daemon were
	// killed before that, the next daemon could start the command a second time.
	err := s.book.change(c, func(s *state) {
		s.Status, s.PID, s.ExitCode, s.Error, s.Started, s.Finished = running, 0, 0, "", time.Now(), time.Time{}
		c.main = p
	})
	if err != nil {
		c.mu.Lock()
		c.main = nil
		c.notifyLocked()
		c.mu.Unlock()
		p.abandon(err)
		return err
	}
	cmd := command{args: args, user: sp.Config.User, dir: sp.Config.WorkingDir, makesDir: sp.Config.WorkingDir != "",
		stdin: sp.Config.OpenStdin}
	if err := s.begin(p, cmd, func() { s.mainEnded(c, p, sp) }); err != nil {
		return err
	}
	s.note(c, func(s *state) {
		if c.main != p {
			return // it has ended already
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		s.PID, s.Started = p.pid, time.Now()
	})
	return nil
}

// note records what has happened to a container.
func (s *Server) note(c *container, f func(*state)) {
	if err := s.book.note(c, f); err != nil {
		s.Face.Log.Error("write the record of a container", "sandbox", c.id, "error", err)
	}
}

// mainEnded records the end of a container's main process, kills the container's other processes,
// and removes the container if its creator wanted this.
func (s *Server) mainEnded(c *container, p *process, sp *spec) {
	code, why := p.end()
	if errors.Is(why, agentclient.ErrDetached) {
		return // the next daemon follows the process
	}
	c.closePorts()
	i, unknown := p.view.Sandbox(c.id)
	s.note(c, func(st *state) {
		c.main = nil
		st.Status, st.PID, st.ExitCode, st.Finished = exited, 0, code, time.Now()
		if st.Started.IsZero() {
			st.Started = st.Finished
		}
		if st.Error = ""; why != nil {
			st.Error = why.Error()
		}
	})
	if unknown == nil {
		s.event("die", c, i, "exitCode", strconv.Itoa(code))
	}
	if c.removesItself(sp) {
		s.removeExited(c, p.view)
		return
	}
	execs := s.execs.running(c.id)
	s.tasks.Go(func() { killAll(s.life, execs) }) // in a goroutine, because the guest may not answer
	s.suspendLater(c, p.view)
}

// removeExited removes an exited container that was created with AutoRemove.
func (s *Server) removeExited(c *container, view *tenancy.View) {
	var gone *sandbox.NotFoundError
	if err := view.Kill(c.id); err != nil && !errors.As(err, &gone) {
		s.Face.Log.Error("remove a container that has exited", "sandbox", c.id, "error", err)
	}
}

// suspendLater suspends the sandbox of an exited container after suspendAfter.
func (s *Server) suspendLater(c *container, view *tenancy.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.suspends != nil {
		c.suspends.Stop()
	}
	c.suspends = time.AfterFunc(suspendAfter, func() {
		unlock, err := c.lock(s.life)
		if err != nil {
			return // the next daemon does it
		}
		defer unlock()
		c.mu.Lock()
		users := c.users
		c.mu.Unlock()
		if users > 0 {
			s.suspendLater(c, view)
			return
		}
		st, gone, _ := c.now()
		i, err := view.Sandbox(c.id)
		if st.Status != exited || gone || err != nil || i.State != sandbox.Running {
			return
		}
		if _, err := view.SuspendWith(s.life, c.id, sandbox.Suspension{Timeless: true}); err != nil && s.life.Err() == nil {
			s.Face.Log.Warn("an exited container still takes memory", "sandbox", c.id, "error", err)
		}
	})
}

// keepRunning stops the timer that would suspend the sandbox of an exited container.
func (c *container) keepRunning() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.suspends != nil {
		c.suspends.Stop()
	}
}

func (s *Server) pause(w http.ResponseWriter, r *http.Request) error {
	return s.changeVM(w, r, running, "pause", "is not running", s.view(r).Pause)
}

func (s *Server) unpause(w http.ResponseWriter, r *http.Request) error {
	return s.changeVM(w, r, paused, "unpause", "is not paused", s.view(r).Resume)
}

// changeVM changes the state of a container's sandbox, if the container has the given status.
func (s *Server) changeVM(w http.ResponseWriter, r *http.Request, want, action, otherwise string,
	change func(context.Context, string) (sandbox.Info, error)) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	if c.status() != want {
		return conflict("Container %s %s", containerID(c.id), otherwise)
	}
	if _, err := change(r.Context(), c.id); err != nil {
		return err
	}
	s.event(action, c.container, c.info)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) rename(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	name, err := nameQuery(r)
	if err != nil {
		return err
	}
	if name == "" {
		return face.BadRequest("name: missing: want the new name")
	}
	given := givenName{prefixOf(r), name}
	release, err := s.reserve(r, given)
	if err != nil {
		return err
	}
	defer release()
	old := c.name()
	if err := s.book.setName(c.container, given); err != nil {
		return err
	}
	s.event("rename", c.container, c.info, "oldName", "/"+old)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// remove deletes a container with its sandbox.
func (s *Server) remove(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	if boolQuery(r, "link") {
		return unsupported("link", insteadOf("Links"))
	}
	if st := c.status(); (st == running || st == paused) && !boolQuery(r, "force") {
		return conflict("cannot remove container %q: container is %s: stop the container before removing or force remove",
			"/"+c.name(), st)
	}
	if err := s.view(r).Kill(c.id); err != nil {
		return err
	}
	s.forget(c.id)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// update changes the limits of a container.
func (s *Server) update(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	h, err := readUpdate(w, r)
	if err != nil {
		return err
	}
	limits, err := limitsOf(&h, c.info.Limits)
	if err != nil {
		return err
	}
	if _, err := s.view(r).SetLimits(r.Context(), c.id, limits); err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusOK, struct{ Warnings []string }{[]string{}})
}

func (s *Server) resize(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	size, err := sizeQuery(r)
	if err != nil {
		return err
	}
	p := c.process()
	if p == nil {
		return conflict("Container %s is not running", containerID(c.id))
	}
	if err := p.resize(r.Context(), size); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}
