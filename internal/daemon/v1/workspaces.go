package v1

import (
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/workspace"
)

func workspaceOf(w workspace.Info) apiv1.Workspace {
	info := apiv1.Workspace{ID: w.ID, Name: w.Name, SourceTag: w.SourceTag, StateTag: w.StateTag,
		Status:        apiv1.WorkspaceRunning,
		LiveSandboxID: w.SandboxID, CreatedAt: w.Created.Unix(), LastActive: w.LastActive.Unix()}
	switch w.State {
	case sandbox.Suspended:
		info.Status, info.LiveSandboxID = apiv1.WorkspaceSuspended, ""
	case sandbox.Exited, sandbox.Stopping:
		info.Status, info.LiveSandboxID = apiv1.WorkspaceStale, ""
	}
	return info
}

func (a *api) createWorkspace(r *http.Request, req *apiv1.WorkspaceRequest) (out apiv1.Workspace, err error) {
	if err := a.view(r).MayName("name", req.Name); err != nil {
		return out, err
	}
	idle, err := face.Seconds("idle_timeout_secs", req.IdleTimeoutSecs, 0, maxTTL)
	if err != nil {
		return out, err
	}
	network, err := settingOf("network.", req.Network)
	if err != nil {
		return out, err
	}
	limits, err := limitsOf(req.Limits, req.MemoryLimitMiB)
	if err != nil {
		return out, err
	}
	fork := sandbox.ForkRequest{Tag: req.SnapshotTag, Env: req.Env, IdleTimeout: idle, Limits: limits, Network: network,
		Labels: req.Labels}
	return described(workspaceOf)(a.view(r).CreateWorkspace(r.Context(), req.Name, fork))
}

func (a *api) listWorkspaces(r *http.Request) (list[workspace.Info, apiv1.Workspace], error) {
	key := func(i workspace.Info) string { return i.Name }
	return list[workspace.Info, apiv1.Workspace]{a.view(r).Workspaces(), key, workspaceOf}, nil
}

func (a *api) getWorkspace(r *http.Request) (apiv1.Workspace, error) {
	return described(workspaceOf)(a.view(r).Workspace(r.PathValue("name")))
}

func (a *api) deleteWorkspace(r *http.Request) error {
	return a.view(r).DeleteWorkspace(r.PathValue("name"))
}

func (a *api) suspendWorkspace(r *http.Request, _ *apiv1.SuspendWorkspaceRequest) (apiv1.Workspace, error) {
	return described(workspaceOf)(a.view(r).SuspendWorkspace(r.Context(), r.PathValue("name")))
}

func (a *api) resumeWorkspace(r *http.Request, _ *apiv1.SuspendWorkspaceRequest) (apiv1.Workspace, error) {
	return described(workspaceOf)(a.view(r).ResumeWorkspace(r.Context(), r.PathValue("name")))
}
