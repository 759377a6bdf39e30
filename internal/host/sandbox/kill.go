package sandbox

import (
	"cmp"
	"os"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/state"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// free releases everything that s has, except its VMM process.
func (m *Manager) free(s *Sandbox) {
	s.freed.Do(func() {
		if err := os.RemoveAll(s.data); err != nil {
			m.cfg.Log.Warn("remove the files of a sandbox", "sandbox", s.id, "error", err)
		}
		m.cfg.Volumes.ReleaseAll(s.id) // after RemoveAll, because on a full disk this needs the freed space
		s.mu.Lock()
		v, unpin := s.live, s.unpin
		s.unpin, s.record.Env = nil, nil // frees the environment, because an exited sandbox stays in the list
		s.mu.Unlock()
		if v != nil {
			v.release()
		}
		if unpin != nil {
			unpin()
		}
	})
}

// maxExited is the maximum number of exited sandboxes of one owner. Sandboxes that can be resumed
// do not count. The number is limited because each of these sandboxes takes some memory, and an
// owner can make any number of sandboxes that end by themselves.
const maxExited = 256

// forgetExited deletes exited sandboxes of an owner, oldest exit first, until at most maxExited are
// left.
func (m *Manager) forgetExited(owner string) {
	old := slices.DeleteFunc(m.List(), func(i Info) bool {
		return i.Owner != owner || i.State != Exited || i.Resumable || i.Workspace != ""
	})
	slices.SortFunc(old, func(a, b Info) int { return a.Ended.Compare(b.Ended) })
	for n := len(old) - maxExited; n > 0; n-- {
		_ = m.Kill(old[n-1].ID) // fails if the sandbox is already deleted
	}
}

// Hold prevents a sandbox from being killed until Release is called. It is for the sandbox of a
// workspace, because the user of the workspace will use the sandbox again.
func (m *Manager) Hold(id, workspace string) error { return m.setHolder(id, workspace) }

// Release reverses Hold.
func (m *Manager) Release(id string) error { return m.setHolder(id, "") }

func (m *Manager) setHolder(id, workspace string) error {
	s, err := m.Get(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workspace = workspace
	return nil
}

// Kill kills a sandbox and removes all of its files, including its suspended state. After a nil
// error nothing is left, except that the kernel may still be ending the process of the VM. For the
// sandbox of a workspace the error is a *HeldError.
func (m *Manager) Kill(id string) error {
	s, err := m.Get(id)
	if err != nil {
		return err
	}
	if w := s.Info().Workspace; w != "" {
		return &failure.HeldError{Op: "kill", ID: id, Workspace: w}
	}
	return m.remove(s)
}

// remove is like Kill, but also kills sandboxes of workspaces. The error is a *NotFoundError if
// another call is deleting the sandbox.
func (m *Manager) remove(s *Sandbox) error {
	id := s.id
	var v *liveVM
	var volumes []mounts.Mount
	reason := "delete"
	err := s.transition("delete", Stopping, func() {
		if s.expired {
			reason = "expiry"
		}
		volumes = s.record.Volumes
		if v = cmp.Or(s.live, s.resuming); v != nil {
			v.cut(&CutOffError{ID: id, By: state.ByDelete})
		}
	})
	if err != nil {
		return &NotFoundError{ID: id} // another call is deleting the sandbox
	}
	s.stopTimers()
	if v != nil && len(volumes) > 0 {
		mounts.Leave(m.cfg.Log, m.exits, id, v.vmm, v.guest.Dial, volumes)
		m.killer.Kill(id, v.vmm) // the next sandbox may mount the volumes only when this VM has ended
	} else if v != nil {
		m.killer.KillSoon(id, v.vmm)
	}
	m.free(s)
	m.drop(s, reason)
	return nil
}

// drop removes a sandbox from the list.
func (m *Manager) drop(s *Sandbox, reason string) {
	m.mu.Lock()
	m.sandboxes.Delete(s.id)
	m.mu.Unlock()
	s.events.Emit(s.event(event.SandboxDeleted, reason))
}

// KillAll kills all sandboxes except those of workspaces. It concurrently tells all guests with
// volumes to unmount them. Each guest may take seconds for this, and systemd does not wait long.
func (m *Manager) KillAll() {
	list := m.List()
	slices.SortStableFunc(list, func(a, b Info) int { return len(b.Volumes) - len(a.Volumes) })
	slow := slices.IndexFunc(append(list, Info{}), func(i Info) bool { return len(i.Volumes) == 0 })
	gate.Each(vmpool.AtOnce+slow, list, func(_ int, info Info) {
		if info.Workspace != "" {
			return
		}
		if err := m.Kill(info.ID); err != nil {
			m.cfg.Log.Info("end a sandbox", "sandbox", info.ID, "error", err)
		}
	})
}

// endAll ends all given children of a fork that has failed.
func (m *Manager) endAll(children []*Sandbox) {
	gate.Each(vmpool.AtOnce, children, func(_ int, s *Sandbox) { m.end(s) })
}

// end kills a child whose fork has failed. No client knows the child yet, so the function reports
// no event.
func (m *Manager) end(s *Sandbox) {
	m.killer.Kill(s.id, s.live.vmm)
	m.free(s)
}

// closeTimeout is how long Close waits for work in progress. systemd kills a daemon that has not
// ended a minute after the signal (TimeoutStopSec of its unit), and the store needs the rest of
// this minute to flush its snapshots.
const closeTimeout = 20 * time.Second

// Close stops the manager. It waits for suspensions and deletions that timers have started, and for
// other work in progress. A VMM may never answer, so Close waits for at most closeTimeout. If kill
// is set, Close kills all sandboxes. If kill is not set, they continue, and the next daemon takes
// them over.
func (m *Manager) Close(kill bool) {
	if kill {
		m.KillAll()
	}
	m.closeWithin(closeTimeout)
}

func (m *Manager) closeWithin(limit time.Duration) {
	if !gate.Within(limit, m.timed.Close, m.background.Wait, func() { m.killer.Wait() }, m.watchers.Wait, m.pool.Close) {
		m.cfg.Log.Warn("work in progress is given up, because it has not ended in time", "time", limit)
	}
}
