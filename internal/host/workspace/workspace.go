// Package workspace gives names to sandboxes. A user suspends and resumes a sandbox by its name,
// even after a reboot of the host.
//
// It stores which sandbox has which name. Package sandbox forks, suspends and kills the sandboxes.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Workspace is a name for one sandbox.
type Workspace struct {
	ID         string
	Name       string
	SourceTag  string
	SandboxID  string
	Created    time.Time
	LastActive time.Time // when the sandbox was last created, suspended or resumed
}

// Info is a workspace with the state of its sandbox.
type Info struct {
	Workspace
	State    sandbox.State // state of the sandbox; Exited if the sandbox no longer exists
	StateTag string        // snapshot of the sandbox's suspended state
}

// Error reports that a workspace does not exist, or that it already exists.
type Error struct {
	Name   string
	Exists bool
	Unread bool // the workspace exists, but its record cannot be read
}

func (e *Error) Error() string {
	if e.Unread {
		return fmt.Sprintf("workspace %q: exists, but its record cannot be read: the daemon's log names the file and the reason; "+
			"choose another name", e.Name)
	}
	if e.Exists {
		return fmt.Sprintf("workspace %q: exists; delete it first or choose another name", e.Name)
	}
	return fmt.Sprintf("workspace %.100q: not found", e.Name)
}

// Sandboxes has the methods of *sandbox.Manager that a Set needs.
type Sandboxes interface {
	Fork(context.Context, sandbox.ForkRequest) (sandbox.ForkResult, error)
	Suspend(ctx context.Context, id string) (sandbox.Info, error)
	Resume(ctx context.Context, id string) (sandbox.Info, error)
	Hold(id, workspace string) error
	Release(id string) error
	Kill(id string) error
	Get(id string) (*sandbox.Sandbox, error)
}

// Set holds the workspaces of one daemon. Its methods may be called concurrently.
type Set struct {
	sandboxes Sandboxes
	dir       string
	log       *slog.Logger

	mu sync.Mutex // never held during a file write, because a slow disk must delay only one workspace
	// +checklocks:mu
	byName map[string]*entry // a workspace that is being created has no sandbox yet
	// +checklocks:mu
	unread map[string]bool // names whose records cannot be read, and must not be overwritten
}

// entry is a workspace of a Set. The Set's mu guards the Workspace.
type entry struct {
	Workspace            // content of the record
	file      sync.Mutex // held while the record is written or removed; locked before the Set's mu
}

// Open returns the workspaces that an earlier daemon left in dir, if dir exists. The sandboxes must
// have been taken over before.
func Open(dir string, sandboxes Sandboxes, log *slog.Logger) (*Set, error) {
	s := &Set{sandboxes: sandboxes, dir: dir, log: log, byName: make(map[string]*entry),
		unread: make(map[string]bool)}
	return s, s.load()
}

// load reads the workspaces of an earlier daemon.
func (s *Set) load() error {
	if err := atomicfile.Clean(s.dir); err != nil {
		s.log.Warn("remove incomplete records of workspaces", "error", err)
	}
	files, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok {
			continue
		}
		w, err := read(filepath.Join(s.dir, f.Name()), name)
		if err != nil {
			s.log.Error("workspace cannot be read", "name", name, "error", err)
			s.unread[name] = true
			continue
		}
		s.byName[name] = &entry{Workspace: *w}
		if err := s.sandboxes.Hold(w.SandboxID, name); err != nil {
			s.log.Error("the sandbox of a workspace is lost", "name", name, "error", err)
		}
	}
	return nil
}

// read reads the record of the workspace with the given name.
func read(path, name string) (*Workspace, error) {
	p, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := record.ParseWorkspace(path, p)
	if err != nil {
		return nil, err
	}
	if r.Name != name {
		return nil, &record.Error{Path: path, Field: "name", Reason: fmt.Sprintf("%q: want the name of the file", r.Name)}
	}
	w := Workspace(*r)
	return &w, nil
}

// save changes a workspace and its record. The change is durable. If the workspace is no longer in
// the Set, save does nothing.
func (s *Set) save(w *entry, change func(*Workspace)) error {
	w.file.Lock()
	defer w.file.Unlock()
	s.mu.Lock()
	changed, there := w.Workspace, s.byName[w.Name] == w
	s.mu.Unlock()
	if !there {
		return nil
	}
	change(&changed)
	r := record.Workspace(changed)
	p, err := record.EncodeWorkspace(&r)
	if err != nil {
		return err
	}
	for range 3 { // repeat, because another call may remove the directory when it deletes a workspace
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			err = atomicfile.WriteDurable(s.path(r.Name), p, 0o600)
		}
		if !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	w.Workspace = changed
	s.mu.Unlock()
	return nil
}

// remove removes a workspace and its record. If another call has already removed the workspace,
// remove does nothing, because the name may already belong to another workspace.
func (s *Set) remove(w *entry) error {
	w.file.Lock()
	defer w.file.Unlock()
	s.mu.Lock()
	there := s.byName[w.Name] == w
	s.mu.Unlock()
	if !there {
		return nil
	}
	if err := os.Remove(s.path(w.Name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_ = os.Remove(s.dir) // fails unless the directory is empty
	s.mu.Lock()
	delete(s.byName, w.Name)
	s.mu.Unlock()
	return nil
}

func (s *Set) path(name string) string { return filepath.Join(s.dir, name+".json") }

// Create forks a sandbox and gives it a name. The rules for names are the same as for tags. Create
// ignores the field N of the request.
func (s *Set) Create(ctx context.Context, name string, req sandbox.ForkRequest) (Info, error) {
	if err := snapshot.CheckTag(name); err != nil {
		return Info{}, &invalid.Error{Field: "name", Reason: err.Error()}
	}
	now := time.Now().UTC()
	w := &entry{Workspace: Workspace{ID: "ws-" + snapshot.NewID(), Name: name, SourceTag: req.Tag, Created: now,
		LastActive: now}}
	s.mu.Lock()
	if s.byName[name] != nil || s.unread[name] {
		defer s.mu.Unlock()
		return Info{}, &Error{Name: name, Exists: true, Unread: s.unread[name]}
	}
	s.byName[name] = w // reserves the name
	s.mu.Unlock()
	req.N, req.AllowPartial = 1, false
	forked, err := s.sandboxes.Fork(ctx, req)
	if err != nil {
		_ = s.remove(w) // cannot fail, because no record was written
		return Info{}, err
	}
	id := forked.Sandboxes[0].ID
	if err = s.sandboxes.Hold(id, name); err == nil {
		err = s.save(w, func(w *Workspace) { w.SandboxID = id })
	}
	if err != nil { // return the first error, which says more
		_ = s.remove(w)
		_ = s.end(id)
		return Info{}, err
	}
	return s.Get(name)
}

// Get returns the Info of a workspace.
func (s *Set) Get(name string) (Info, error) {
	_, info, err := s.get(name)
	return info, err
}

func (s *Set) get(name string) (*entry, Info, error) {
	s.mu.Lock()
	w := s.byName[name]
	if w == nil || w.SandboxID == "" {
		s.mu.Unlock()
		return nil, Info{}, &Error{Name: name}
	}
	info := Info{Workspace: w.Workspace, State: sandbox.Exited}
	s.mu.Unlock()
	if box, err := s.sandboxes.Get(info.SandboxID); err == nil {
		now := box.Info()
		if info.State = now.State; info.State == sandbox.Suspended {
			info.StateTag = now.StateTag
		}
	}
	return w, info, nil
}

// List returns the Info of all workspaces, sorted by name.
func (s *Set) List() []Info {
	s.mu.Lock()
	var names []string
	for name := range s.byName {
		names = append(names, name)
	}
	s.mu.Unlock()
	slices.Sort(names)
	list := []Info{}
	for _, name := range names {
		if w, err := s.Get(name); err == nil {
			list = append(list, w)
		}
	}
	return list
}

// Suspend suspends the sandbox of a workspace.
func (s *Set) Suspend(ctx context.Context, name string) (Info, error) {
	return s.on(name, func(id string) error { _, err := s.sandboxes.Suspend(ctx, id); return err })
}

// Resume resumes the sandbox of a workspace.
func (s *Set) Resume(ctx context.Context, name string) (Info, error) {
	return s.on(name, func(id string) error { _, err := s.sandboxes.Resume(ctx, id); return err })
}

func (s *Set) on(name string, do func(id string) error) (Info, error) {
	w, info, err := s.get(name)
	if err != nil {
		return info, err
	}
	if err := do(info.SandboxID); err != nil {
		return info, err
	}
	if err := s.save(w, func(w *Workspace) { w.LastActive = time.Now().UTC() }); err != nil {
		return info, err
	}
	return s.Get(name)
}

// Delete kills the sandbox of a workspace, in any state, and removes the workspace.
func (s *Set) Delete(name string) error {
	w, info, err := s.get(name)
	if err != nil {
		return err
	}
	if err := s.end(info.SandboxID); err != nil {
		return err
	}
	return s.remove(w)
}

// end kills the sandbox of a workspace, if it still exists.
func (s *Set) end(id string) error {
	err := s.sandboxes.Release(id)
	if err == nil {
		err = s.sandboxes.Kill(id)
	}
	if gone := (*sandbox.NotFoundError)(nil); errors.As(err, &gone) {
		return nil
	}
	return err
}
