package tenancy

import (
	"context"
	"slices"

	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/workspace"
)

// knows reports whether a workspace is visible: by its name, and by the labels of its sandbox while
// that exists.
func (v *View) knows(w workspace.Info) bool {
	if v.isEmpty() || !v.p.Prefix.HasTag(w.Name) {
		return false
	}
	box, err := v.host.manager.Get(w.SandboxID)
	return err != nil || v.p.Prefix.HasLabels(box.Info().Labels)
}

// Workspace describes a workspace.
func (v *View) Workspace(name string) (workspace.Info, error) {
	w, err := v.host.workspaces.Get(name)
	if err == nil && !v.knows(w) {
		return workspace.Info{}, &workspace.Error{Name: name}
	}
	return w, err
}

// Workspaces describes all workspaces.
func (v *View) Workspaces() []workspace.Info {
	return slices.DeleteFunc(v.host.workspaces.List(), func(w workspace.Info) bool { return !v.knows(w) })
}

// CreateWorkspace is Set.Create. It returns a *owner.PrefixError for a name that the principal may
// not give.
func (v *View) CreateWorkspace(ctx context.Context, name string, req sandbox.ForkRequest) (workspace.Info, error) {
	if err := v.MayName("name", name); err != nil {
		return workspace.Info{}, err
	}
	return v.host.workspaces.Create(v.as(ctx), name, req)
}

// SuspendWorkspace is Set.Suspend.
func (v *View) SuspendWorkspace(ctx context.Context, name string) (workspace.Info, error) {
	if w, err := v.Workspace(name); err != nil {
		return w, err
	}
	return v.host.workspaces.Suspend(v.as(ctx), name)
}

// ResumeWorkspace is Set.Resume.
func (v *View) ResumeWorkspace(ctx context.Context, name string) (workspace.Info, error) {
	if w, err := v.Workspace(name); err != nil {
		return w, err
	}
	return v.host.workspaces.Resume(v.as(ctx), name)
}

// DeleteWorkspace is Set.Delete.
func (v *View) DeleteWorkspace(name string) error {
	if _, err := v.Workspace(name); err != nil {
		return err
	}
	return v.host.workspaces.Delete(name)
}
