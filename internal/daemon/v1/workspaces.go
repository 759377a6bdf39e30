package v1

import (
	"context"
	"net/http"
	"slices"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/workspace"
)

func workspaceOf(w workspace.Info) apiv1.Workspace {
	info := apiv1.Workspace{ID: w.ID, Name: w.Name, SourceTag: w.SourceTag, StateTag: w.StateTag, Status: apiv1.WorkspaceRunning,
		LiveSandboxID: w.SandboxID, CreatedAt: w.Created.Unix(), LastActive: w.LastActive.Unix()}
	switch w.State {
	case sandbox.Suspended:
		info.Status, info.LiveSandboxID = apiv1.WorkspaceSuspended, ""
	case sandbox.Exited, sandbox.Stopping:
		info.Status, info.LiveSandboxID = apiv1.WorkspaceStale, ""
	}
	return info
}

func (a *api) createWorkspace(w http.ResponseWriter, r *http.Request) error {
	var req apiv1.WorkspaceRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	if err := sandbox.Within(r.Context(), sandbox.PrefixOf(r.Context()).HasTag(req.Name), "name: %.70q", req.Name); err != nil {
		return err
	}
	idle, err := seconds("idle_timeout_secs", req.IdleTimeoutSecs, 0, maxTTL)
	if err != nil {
		return err
	}
	network, err := settingOf("network.", req.Network)
	if err != nil {
		return err
	}
	limits, err := limitsOf(req.Limits, req.MemoryLimitMiB)
	if err != nil {
		return err
	}
	fork := sandbox.ForkRequest{Tag: req.SnapshotTag, Env: req.Env, IdleTimeout: idle, Limits: limits, Network: network, Labels: req.Labels}
	info, err := a.Workspaces.Create(r.Context(), req.Name, fork)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, workspaceOf(info))
}

func (a *api) listWorkspaces(w http.ResponseWriter, r *http.Request) error {
	p := sandbox.PrefixOf(r.Context())
	infos := slices.DeleteFunc(a.Workspaces.List(), func(i workspace.Info) bool { return !a.mayKnow(p, i) })
	list := make([]listed[apiv1.Workspace], len(infos))
	for n, i := range infos {
		list[n] = listed[apiv1.Workspace]{workspaceOf(i), i.Name}
	}
	return writeList(w, r, list)
}

func (a *api) getWorkspace(w http.ResponseWriter, r *http.Request) error {
	info, err := a.Workspaces.Get(r.PathValue("name"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, workspaceOf(info))
}

func (a *api) deleteWorkspace(w http.ResponseWriter, r *http.Request) error {
	if err := a.Workspaces.Delete(r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *api) suspendWorkspace(w http.ResponseWriter, r *http.Request) error {
	return a.onWorkspace(w, r, a.Workspaces.Suspend)
}

func (a *api) resumeWorkspace(w http.ResponseWriter, r *http.Request) error {
	return a.onWorkspace(w, r, a.Workspaces.Resume)
}

func (a *api) onWorkspace(w http.ResponseWriter, r *http.Request, op func(context.Context, string) (workspace.Info, error)) error {
	if err := readJSON(w, r, &apiv1.SuspendWorkspaceRequest{}); err != nil {
		return err
	}
	info, err := op(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, workspaceOf(info))
}
