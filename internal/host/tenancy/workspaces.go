package tenancy

import (
	"context"
	"slices"

	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/workspace"
)

// knows reports whether the principal may see a workspace. The principal must be able to see the
// name and, as long as the workspace's sandbox exists, also the sandbox.
func (v *View) knows(w workspace.Info) bool {
	if v.isEmpty() || !v.p.Prefix.HasTag(w.Name) {
		return false
	}
	box, err := v.host.manager.Get(w.SandboxID)
	return err != nil || v.p.Prefix.HasLabels(box.Info().Labels)
}

// Workspace returns the Info of a workspace.
func (v *View) Workspace(name string) (workspace.Info, error) {
	w, err := v.host.workspaces.Get(name)
	if err == nil && !v.knows(w) {
		return workspace.Info{}, &workspace.Error{Name: name}
	}
	return w, err
}

// Workspaces returns the Info of all workspaces that the principal may see.
func (v *View) Workspaces() []workspace.Info {
	return slices.DeleteFunc(v.host.workspaces.List(), func(w workspace.Info) bool { return !v.knows(w) })
}

// CreateWorkspace calls Set.Create. If the principal may not use the name, the error is an
// *owner.PrefixError.
func (v *View) CreateWorkspace(ctx context.Context, name string, req sandbox.ForkRequest) (workspace.Info, error) {
	if err := v.MayName("name", name); err != nil {
		return workspace.Info{}, err
	}
	return v.host.workspaces.Create(v.as(ctx), name, req)
}

// SuspendWorkspace calls Set.Suspend.
func (v *View) SuspendWorkspace(ctx context.Context, name string) (workspace.Info, error) {
	if w, err := v.Workspace(name); err != nil {
		return w, err
	}
	return v.host.workspaces.Suspend(v.as(ctx), name)
}

// ResumeWorkspace calls Set.Resume.
func (v *View) ResumeWorkspace(ctx context.Context, name string) (workspace.Info, error) {
	if w, err := v.Workspace(name); err != nil {
		return w, err
	}
	return v.host.workspaces.Resume(v.as(ctx), name)
}

// DeleteWorkspace calls Set.Delete.
func (v *View) DeleteWorkspace(name string) error {
	if _, err := v.Workspace(name); err != nil {
		return err
	}
	return v.host.workspaces.Delete(name)
}
