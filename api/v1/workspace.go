package v1

// Workspace is a name for a sandbox that is suspended and resumed.
type Workspace struct {
	ID            string `json:"id"`
	Name          string `json:"name"`
	SourceTag     string `json:"source_snapshot_tag"`
	StateTag      string `json:"current_state_tag,omitempty"` // snapshot with the suspended state
	Status        string `json:"status"`                      // "running", "suspended" or "stale"
	LiveSandboxID string `json:"live_sandbox_id,omitempty"`
	CreatedAt     int64  `json:"created_at_unix"`
	LastActive    int64  `json:"last_active_unix"`
}

// Values of a workspace's status. The VM of a stale workspace has ended. If the workspace has a
// suspended state, a resume restores the latest one.
const (
	WorkspaceRunning   = "running"
	WorkspaceSuspended = "suspended"
	WorkspaceStale     = "stale"
)

// WorkspaceRequest requests a workspace.
type WorkspaceRequest struct {
	Name            string            `json:"name"`
	SnapshotTag     string            `json:"snapshot_tag"`
	MemoryLimitMiB  uint64            `json:"memory_limit_mib,omitempty"`
	Env             map[string]string `json:"env,omitempty"`
	IdleTimeoutSecs float64           `json:"idle_timeout_secs,omitempty"`
	Network         *Network          `json:"network,omitempty"`         // nil: the policy of the snapshot
	Limits          *Limits           `json:"limits,omitempty"`          // nil: the limits of the snapshot
	Labels          map[string]string `json:"labels,omitempty"`          // labels of the sandbox
	PerChildNetns   bool              `json:"per_child_netns,omitempty"` // field of forkd 0.5
}

// SuspendWorkspaceRequest has a field of forkd 0.5, which is ignored: a suspended state always
// shares as much as possible with its parent.
type SuspendWorkspaceRequest struct {
	Diff bool `json:"diff,omitempty"`
}
