package v1

// Workspace is a name for a sandbox that is suspended and brought back.
type Workspace struct {
	ID            string `json:"id"`
	Name          string `json:"name"`
	SourceTag     string `json:"source_snapshot_tag"`
	StateTag      string `json:"current_state_tag,omitempty"` // the snapshot of its suspended state
	Status        string `json:"status"`                      // "running", "suspended" or "stale"
	LiveSandboxID string `json:"live_sandbox_id,omitempty"`
	CreatedAt     int64  `json:"created_at_unix"`
	LastActive    int64  `json:"last_active_unix"`
}

// The words for the status of a workspace. The VM of a stale one has ended: resume brings back its
// latest suspended state, if it has one.
const (
	WorkspaceRunning   = "running"
	WorkspaceSuspended = "suspended"
	WorkspaceStale     = "stale"
)

// WorkspaceRequest asks for a workspace.
type WorkspaceRequest struct {
	Name            string            `json:"name"`
	SnapshotTag     string            `json:"snapshot_tag"`
	MemoryLimitMiB  uint64            `json:"memory_limit_mib,omitempty"`
	Env             map[string]string `json:"env,omitempty"`
	IdleTimeoutSecs float64           `json:"idle_timeout_secs,omitempty"`
	Network         *Network          `json:"network,omitempty"`         // nil: that of the snapshot
	Limits          *Limits           `json:"limits,omitempty"`          // nil: those of the snapshot
	Labels          map[string]string `json:"labels,omitempty"`          // of its sandbox
	PerChildNetns   bool              `json:"per_child_netns,omitempty"` // of forkd 0.5
}

// SuspendWorkspaceRequest has the field of forkd 0.5: a suspended state always shares what it can
// with its parent.
type SuspendWorkspaceRequest struct {
	Diff bool `json:"diff,omitempty"`
}
