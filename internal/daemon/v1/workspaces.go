package v1

import (
	"context"
	"net/http"

	"github.com/forkd/forkd/internal/sandbox"
)

type workspaceInfo struct {
	ID            string `json:"id"`
	Name          string `json:"name"`
	SourceTag     string `json:"source_snapshot_tag"`
	StateTag      string `json:"current_state_tag,omitempty"`
	Status        string `json:"status"` // running, suspended, or stale: its sandbox is lost
	LiveSandboxID string `json:"live_sandbox_id,omitempty"`
	CreatedAt     int64  `json:"created_at_unix"`
	LastActive    int64  `json:"last_active_unix"`
}

func workspaceOf(w sandbox.WorkspaceInfo) workspaceInfo {
	info := workspaceInfo{ID: w.ID, Name: w.Name, SourceTag: w.SourceTag, StateTag: w.StateTag, Status: "running",
		LiveSandboxID: w.SandboxID, CreatedAt: w.Created.Unix(), LastActive: w.LastActive.Unix()}
	switch w.State {
	case sandbox.Suspended:
		info.Status, info.LiveSandboxID = "suspended", ""
	case sandbox.Exited, sandbox.Stopping:
		info.Status, info.LiveSandboxID = "stale", ""
	}
	return info
}

// createWorkspaceRequest has the fields of forkd 0.5 and ours; see createSandboxesRequest for per_child_netns.
type createWorkspaceRequest struct {
	Name           string            `json:"name"`
	SnapshotTag    string            `json:"snapshot_tag"`
	PerChildNetns  bool              `json:"per_child_netns"`
	MemoryLimitMiB *uint64           `json:"memory_limit_mib"`
	Env            map[string]string `json:"env"`
	IdleTimeout    float64           `json:"idle_timeout_secs"`
}

func (a *api) createWorkspace(w http.ResponseWriter, r *http.Request) error {
	var req createWorkspaceRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	idle, err := seconds("idle_timeout_secs", req.IdleTimeout, 0, maxTTL)
	if err != nil {
		return err
	}
	fork := sandbox.ForkRequest{Tag: req.SnapshotTag, Env: req.Env, IdleTimeout: idle}
	if req.MemoryLimitMiB != nil {
		fork.MemoryLimitMiB = *req.MemoryLimitMiB
	}
	info, err := a.Manager.CreateWorkspace(r.Context(), req.Name, fork)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, workspaceOf(info))
}

func (a *api) listWorkspaces(w http.ResponseWriter, _ *http.Request) error {
	list := []workspaceInfo{}
	for _, i := range a.Manager.Workspaces() {
		list = append(list, workspaceOf(i))
	}
	return writeJSON(w, http.StatusOK, list)
}

func (a *api) getWorkspace(w http.ResponseWriter, r *http.Request) error {
	info, err := a.Manager.Workspace(r.PathValue("name"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, workspaceOf(info))
}

func (a *api) deleteWorkspace(w http.ResponseWriter, r *http.Request) error {
	if err := a.Manager.DeleteWorkspace(r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// suspendWorkspaceRequest has the field of forkd 0.5; a suspended state always shares what it can with its parent.
type suspendWorkspaceRequest struct {
	Diff bool `json:"diff"`
}

func (a *api) suspendWorkspace(w http.ResponseWriter, r *http.Request) error {
	return a.onWorkspace(w, r, a.Manager.SuspendWorkspace)
}

func (a *api) resumeWorkspace(w http.ResponseWriter, r *http.Request) error {
	return a.onWorkspace(w, r, a.Manager.ResumeWorkspace)
}

func (a *api) onWorkspace(w http.ResponseWriter, r *http.Request, op func(context.Context, string) (sandbox.WorkspaceInfo, error)) error {
	if err := readJSON(w, r, &suspendWorkspaceRequest{}); err != nil {
		return err
	}
	info, err := op(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, workspaceOf(info))
}
