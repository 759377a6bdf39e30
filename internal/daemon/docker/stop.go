package docker

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// stop ends the main process of a container. If the container has none, stop suspends the sandbox.
func (s *Server) stop(w http.ResponseWriter, r *http.Request) error {
	c, unlock, err := s.findLocked(r)
	if err != nil {
		return err
	}
	defer unlock()
	did, err := s.stopLocked(r, &c)
	if did && err == nil {
		s.event("stop", c.container, c.info)
	}
	return answerChange(w, did, err)
}

// stopLocked stops a container, and reports whether it was running. The caller holds the container's
// lock.
func (s *Server) stopLocked(r *http.Request, c *found) (did bool, err error) {
	sp := specOf(c.info)
	wait := stopTimeout
	if sp.Config.StopTimeout != nil {
		wait = *sp.Config.StopTimeout
	}
	if wait, err = intQuery(r, "t", wait, -1, maxStop); err != nil {
		return false, err
	}
	name := sp.Config.StopSignal
	if asked := r.URL.Query().Get("signal"); asked != "" {
		name = asked
	}
	sig := syscall.SIGTERM
	if name != "" {
		if sig, err = signalOf(name); err != nil {
			return false, err
		}
	}
	switch c.status() {
	case created, exited:
		return false, nil
	case paused:
		if _, err := s.view(r).Resume(r.Context(), c.id); err != nil {
			return false, err
		}
	}
	p := c.process()
	if p == nil {
		return true, s.stopMachine(r, c.container, 0)
	}
	if err := p.awaitStart(r.Context()); err != nil {
		return false, err
	}
	if err := p.signal(r.Context(), sig); err != nil {
		return false, err
	}
	limit := time.Duration(wait) * time.Second
	if wait < 0 {
		limit = maxStop * time.Second
	}
	if !p.endsWithin(r.Context(), limit) {
		// The error of the signal counts only if the process does not end. The signal also fails if
		// the process has just ended and its container removes itself.
		err := p.signal(r.Context(), syscall.SIGKILL)
		if !p.endsWithin(r.Context(), killTime) {
			late := face.NewError(http.StatusGatewayTimeout, "the main process does not end after SIGKILL")
			return false, cmp.Or(err, error(late))
		}
	}
	return true, nil
}

// endsWithin waits for the end of a process, at most for the time limit, and reports whether the
// process has ended.
func (p *process) endsWithin(ctx context.Context, limit time.Duration) bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(limit):
	case <-ctx.Done():
	}
	return false
}

// stopMachine stops a container that has no main process: it suspends the sandbox.
func (s *Server) stopMachine(r *http.Request, c *container, code int) error {
	c.closePorts()
	killAll(r.Context(), s.execs.running(c.id))
	i, err := s.view(r).SuspendWith(r.Context(), c.id, sandbox.Suspension{Timeless: true})
	if err != nil {
		return err
	}
	s.event("die", c, i, "exitCode", strconv.Itoa(code))
	if sp := specOf(i); c.removesItself(&sp) {
		return s.view(r).Kill(c.id)
	}
	if c.isOwn() {
		s.note(c, func(s *state) { s.Status, s.ExitCode, s.Finished = exited, code, time.Now() })
	} else {
		c.notify()
	}
	c.out.end()
	return nil
}

func (s *Server) restart(w http.ResponseWriter, r *http.Request) error {
	c, unlock, err := s.findLocked(r)
	if err != nil {
		return err
	}
	defer unlock()
	// As with Docker, a restart continues if the client leaves.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	sp := specOf(c.info)
	s.setRestarts(c.container, &sp, true)
	if _, err = s.stopLocked(r.WithContext(ctx), &c); err == nil {
		_, err = s.startLocked(ctx, s.Face.View(ctx), c.container)
	}
	if s.life.Err() != nil {
		return err // the next daemon finds in the record that the container must stay
	}
	s.setRestarts(c.container, &sp, false)
	if err != nil {
		return err
	}
	s.event("restart", c.container, c.info)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// setRestarts records whether a restart of a container is under way. Only a container that removes
// itself needs this record.
func (s *Server) setRestarts(c *container, sp *spec, yes bool) {
	if st, _, _ := c.now(); sp.Host.AutoRemove && st.Restarts != yes {
		s.note(c, func(s *state) { s.Restarts = yes })
	}
}

// kill sends a signal to the main process. It does not wait for other operations.
func (s *Server) kill(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	sig := syscall.SIGKILL
	if name := r.URL.Query().Get("signal"); name != "" {
		if sig, err = signalOf(name); err != nil {
			return err
		}
	}
	if st := c.status(); st != running {
		return conflict("Container %s is not running", containerID(c.id))
	}
	switch p := c.process(); {
	case p != nil:
		if err = p.awaitStart(r.Context()); err == nil {
			err = p.signal(r.Context(), sig)
		}
		if sig == syscall.SIGKILL && err == nil {
			p.endsWithin(r.Context(), killTime)
		}
	case sig == syscall.SIGKILL || sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGQUIT:
		err = s.stopMachine(r, c.container, exitSignal+int(sig))
	default:
		err = conflict("Container %s has no main process that could receive signal %d", containerID(c.id), int(sig))
	}
	if err != nil {
		return err
	}
	s.event("kill", c.container, c.info, "signal", strconv.Itoa(int(sig)))
	w.WriteHeader(http.StatusNoContent)
	return nil
}
