package dirsync

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/pause"
)

const (
	debounce = 100 * time.Millisecond // pause after a change before files are read
	pollTime = 2 * time.Second        // between two checks of a sandbox that is not running
	maxPause = 10 * time.Second       // longest time between two attempts to reach the daemon
	maxHints = 64                     // changed paths; with more, everything is read
)

// hints say where something may have changed.
type hints struct {
	allHost, allGuest bool
	host              map[string]bool // paths
	guest             map[string]bool // directories
	rolledBack        bool            // the guest may have the files of an earlier time
}

func (h *hints) addHost(rel string)  { h.allHost = add(&h.host, rel, h.allHost) }
func (h *hints) addGuest(dir string) { h.allGuest = add(&h.guest, dir, h.allGuest) }

// add adds a name to a set. It reports whether the set now stands for all names.
func add(set *map[string]bool, name string, all bool) bool {
	switch {
	case all || len(*set) >= maxHints:
		return true // nothing more is stored, however many changes a guest reports
	case *set == nil:
		*set = map[string]bool{}
	}
	(*set)[name] = true
	return false
}

func (s *Sync) note(change func(*hints)) {
	s.mu.Lock()
	change(&s.dirty)
	s.mu.Unlock()
}

// changed notes a change and wakes Run.
func (s *Sync) changed(change func(*hints)) {
	s.note(change)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run keeps both sides in sync until ctx ends, the sandbox ends, or a *StopError occurs. After other
// errors, such as a restart of the daemon, it tries again.
func (s *Sync) Run(ctx context.Context) error {
	notices, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", s.Dir, err)
	}
	s.notices = notices
	s.setBlind(true)
	s.note(func(h *hints) { h.allHost = true }) // the scan watches all directories
	ctx, cancel := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer func() {
		cancel()
		s.notices.Close()
		followers.Wait()
		s.notices = nil
		s.setBlind(false)
	}()
	followers.Go(func() { s.followHost(notices) })
	followers.Go(func() { s.followSandbox(ctx) })
	if s.Both {
		followers.Go(func() { s.followGuest(ctx) })
	}
	for between := debounce; ; {
		err := s.converge(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			between = debounce
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
			_ = pause.For(ctx, debounce)
		case isFinal(err):
			return err
		default:
			s.note(func(h *hints) { h.allGuest = h.allGuest || s.Both })
			s.leftOutAll(err)
			_ = pause.For(ctx, between)
			between = min(2*between, maxPause)
		}
	}
}

// leftOutAll reports that nothing is synced at present. converge reports the end of this state.
func (s *Sync) leftOutAll(err error) {
	if why := err.Error(); s.left[""] != why {
		s.left[""] = why
		s.say("waiting", "", why)
	}
}

// isFinal reports whether another attempt would fail too.
func isFinal(err error) bool {
	return errors.As(err, new(*StopError)) || client.IsStatus(err, http.StatusUnauthorized) ||
		client.IsStatus(err, http.StatusForbidden)
}

// ready waits until the sandbox runs. It does not wake a suspended sandbox. If the sandbox was
// rolled back since the previous call, the agreement of the two sides is forgotten.
func (s *Sync) ready(ctx context.Context) error {
	for begin := time.Now(); ; {
		box, err := s.cl.Sandbox(ctx, s.ID)
		switch {
		case errors.Is(err, client.ErrSandboxNotFound), err == nil && (box.State == "exited" || box.State == "stopping"):
			return &StopError{fmt.Errorf("the sandbox %s has ended", s.ID)}
		case err != nil:
			return err
		case box.State == "running" && !s.isBlind():
			s.forgetRolledBack()
			return nil
		case box.State != "running":
			s.leftOutAll(fmt.Errorf("the sandbox %s is %s: changes are copied when it runs again", s.ID, box.State))
		case time.Since(begin) > pollTime:
			s.leftOutAll(errors.New("the daemon sends no events: one of them could tell that the sandbox was rolled back"))
		}
		timer := time.NewTimer(pollTime)
		select {
		case <-s.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// setBlind notes whether a rollback of the sandbox could happen unnoticed.
func (s *Sync) setBlind(blind bool) {
	s.mu.Lock()
	s.blind = blind
	s.mu.Unlock()
}

// isBlind reports whether changes must wait, because the guest's files may be those of an earlier time.
func (s *Sync) isBlind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Both && s.blind
}

// forgetRolledBack reports whether the sandbox was rolled back since the previous call. If so, it
// forgets the agreement.
func (s *Sync) forgetRolledBack() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dirty.rolledBack {
		return false
	}
	s.dirty.rolledBack, s.dirty.allGuest = false, true
	clear(s.base)
	clear(s.sending)
	return true
}

// followHost notes changes of the host's directory until the watcher is closed.
func (s *Sync) followHost(notices *fsnotify.Watcher) {
	for {
		select {
		case n, ok := <-notices.Events:
			if !ok {
				return
			}
			rel, err := filepath.Rel(s.Dir, n.Name)
			if err == nil && !strings.HasPrefix(path.Base(rel), tempPrefix) {
				s.changed(func(h *hints) { h.addHost(rel) })
			}
		case _, ok := <-notices.Errors: // for example, the kernel has dropped events
			if !ok {
				return
			}
			s.changed(func(h *hints) { h.allHost = true })
		}
	}
}

// followGuest notes changes of the guest's directory. It watches only a running sandbox, because a
// request to watch could resume the sandbox.
func (s *Sync) followGuest(ctx context.Context) {
	for ; ctx.Err() == nil; _ = pause.For(ctx, pollTime) {
		if box, err := s.cl.Sandbox(ctx, s.ID); err != nil || box.State != "running" {
			continue
		}
		_ = s.cl.WatchFiles(ctx, s.ID, s.Remote, true, func(c client.FileChange) error {
			s.changed(func(h *hints) {
				if c.Type == "begun" || !goodName(c.Name) {
					h.allGuest = true
				} else {
					h.addGuest(path.Dir(c.Name))
				}
			})
			return nil
		}) // after an error the next watch begins with a whole scan
	}
}

// followSandbox wakes Run when the state of the sandbox changes, and notes rollbacks. If events are
// lost, one of them may have been a rollback.
func (s *Sync) followSandbox(ctx context.Context) {
	again := false
	req := client.EventsRequest{Sandboxes: []string{s.ID}}
	req.Begun = func() {
		s.setBlind(false)
		// If the sandbox may have been rolled back while no connection was open, a rollback is
		// assumed. Without the ID of an event, a new connection cannot continue where the old one
		// ended. With an ID, it receives the missed events, but a moment later, which is too late
		// if the guest could remove files of the host.
		lost := again && (s.Both || req.After == "")
		s.changed(func(h *hints) { h.rolledBack = h.rolledBack || lost })
	}
	for ; ctx.Err() == nil; _ = pause.For(ctx, pollTime) {
		_ = s.cl.Events(ctx, req, func(e client.Event) error {
			req.After = e.ID
			s.changed(func(h *hints) {
				lost := e.Type == client.EventMissed
				h.rolledBack = h.rolledBack || lost || e.Type == "sandbox.restoring" && e.Reason != "resume"
			})
			return nil
		})
		again = true
		s.setBlind(true)
	}
}
