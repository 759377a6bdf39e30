package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/snapshot"
)

// Workspace is a name for one sandbox that is suspended and brought back, also across reboots of the host.
type Workspace struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	SourceTag  string    `json:"source_snapshot_tag"`
	SandboxID  string    `json:"sandbox_id"`
	Created    time.Time `json:"created"`
	LastActive time.Time `json:"last_active"` // created, suspended or brought back
}

// WorkspaceInfo is a workspace and how its sandbox is.
type WorkspaceInfo struct {
	Workspace
	State    State  // Running (or paused), Suspended, or Exited: its sandbox is lost
	StateTag string // the snapshot of its suspended state
}

// WorkspaceError reports a workspace that is not there, or is there already.
type WorkspaceError struct {
	Name   string
	Exists bool
}

func (e *WorkspaceError) Error() string {
	if e.Exists {
		return fmt.Sprintf("workspace %q: exists; delete it first or choose another name", e.Name)
	}
	return fmt.Sprintf("workspace %q: not found", e.Name)
}

func (m *Manager) workspaceDir() string { return filepath.Join(m.cfg.DataDir, "workspaces") }

// loadWorkspaces reads the workspaces of an earlier daemon.
func (m *Manager) loadWorkspaces() error {
	files, err := os.ReadDir(m.workspaceDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok {
			continue
		}
		w := &Workspace{}
		p, err := os.ReadFile(filepath.Join(m.workspaceDir(), f.Name()))
		if err == nil {
			err = json.Unmarshal(p, w)
		}
		if err != nil || w.Name != name {
			m.cfg.Log.Error("workspace cannot be read", "name", name, "error", err)
			continue
		}
		m.workspaces[name] = w
	}
	return nil
}

// saveWorkspaceLocked makes a workspace durable.
func (m *Manager) saveWorkspaceLocked(w *Workspace) error {
	if err := os.MkdirAll(m.workspaceDir(), 0o700); err != nil {
		return err
	}
	return writeDurable(filepath.Join(m.workspaceDir(), w.Name+".json"), w)
}

// CreateWorkspace forks a sandbox and gives it a name, by the rules of tags. The request's N is ignored.
func (m *Manager) CreateWorkspace(ctx context.Context, name string, req ForkRequest) (WorkspaceInfo, error) {
	if err := snapshot.CheckTag(name); err != nil {
		return WorkspaceInfo{}, &InvalidError{"name", err.Error()}
	}
	now := time.Now().UTC()
	w := &Workspace{ID: "ws-" + snapshot.NewID(), Name: name, SourceTag: req.Tag, Created: now, LastActive: now}
	m.mu.Lock()
	if m.workspaces[name] != nil {
		m.mu.Unlock()
		return WorkspaceInfo{}, &WorkspaceError{Name: name, Exists: true}
	}
	m.workspaces[name] = w // reserved
	m.mu.Unlock()
	req.N, req.AllowPartial = 1, false
	forked, err := m.Fork(ctx, req)
	m.mu.Lock()
	if err == nil {
		w.SandboxID = forked.Sandboxes[0].ID
		err = m.saveWorkspaceLocked(w)
	}
	if err != nil {
		delete(m.workspaces, name)
	}
	m.mu.Unlock()
	if err != nil {
		if w.SandboxID != "" {
			_ = m.Kill(w.SandboxID)
		}
		return WorkspaceInfo{}, err
	}
	return m.Workspace(name)
}

// Workspace describes one workspace.
func (m *Manager) Workspace(name string) (WorkspaceInfo, error) {
	m.mu.Lock()
	w := m.workspaces[name]
	if w == nil || w.SandboxID == "" {
		m.mu.Unlock()
		return WorkspaceInfo{}, &WorkspaceError{Name: name}
	}
	info := WorkspaceInfo{Workspace: *w, State: Exited}
	s := m.sandboxes[w.SandboxID]
	m.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		if info.State = s.state; s.state == Suspended {
			info.StateTag = s.record.SnapshotTag
		}
		s.mu.Unlock()
	}
	return info, nil
}

// Workspaces describes all workspaces, sorted by name.
func (m *Manager) Workspaces() []WorkspaceInfo {
	m.mu.Lock()
	var names []string
	for name := range m.workspaces {
		names = append(names, name)
	}
	m.mu.Unlock()
	slices.Sort(names)
	list := []WorkspaceInfo{}
	for _, name := range names {
		if w, err := m.Workspace(name); err == nil {
			list = append(list, w)
		}
	}
	return list
}

// SuspendWorkspace suspends the sandbox of a workspace.
func (m *Manager) SuspendWorkspace(ctx context.Context, name string) (WorkspaceInfo, error) {
	return m.onWorkspace(name, func(id string) error { _, err := m.Suspend(ctx, id); return err })
}

// ResumeWorkspace brings the sandbox of a workspace back.
func (m *Manager) ResumeWorkspace(ctx context.Context, name string) (WorkspaceInfo, error) {
	return m.onWorkspace(name, func(id string) error { _, err := m.Resume(ctx, id); return err })
}

func (m *Manager) onWorkspace(name string, do func(id string) error) (WorkspaceInfo, error) {
	info, err := m.Workspace(name)
	if err != nil {
		return info, err
	}
	if err := do(info.SandboxID); err != nil {
		return info, err
	}
	m.mu.Lock()
	if w := m.workspaces[name]; w != nil {
		w.LastActive = time.Now().UTC()
		err = m.saveWorkspaceLocked(w)
	}
	m.mu.Unlock()
	if err != nil {
		return info, err
	}
	return m.Workspace(name)
}

// DeleteWorkspace ends the sandbox of a workspace, whatever its state, and removes both.
func (m *Manager) DeleteWorkspace(name string) error {
	info, err := m.Workspace(name)
	if err != nil {
		return err
	}
	var gone *NotFoundError
	if err := m.Kill(info.SandboxID); err != nil && !errors.As(err, &gone) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.workspaces, name)
	if err := os.Remove(filepath.Join(m.workspaceDir(), name+".json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_ = os.Remove(m.workspaceDir()) // if it was the last one
	return nil
}
