package v1

// Sandbox is a VM forked from a snapshot.
type Sandbox struct {
	ID             string `json:"id"`
	SnapshotTag    string `json:"snapshot_tag"`
	GuestAddr      string `json:"guest_addr"` // of forkd 0.5: where `forkd forward-guests` serves it; empty: nowhere
	CreatedAt      int64  `json:"created_at_unix"`
	PID            int    `json:"pid,omitempty"`                   // of its VMM process
	MemoryLimitMiB uint64 `json:"memory_limit_mib,omitempty"`      // Limits.MemoryMiB, under its name of forkd 0.5
	LimitEnforced  bool   `json:"memory_limit_enforced,omitempty"` // there where MemoryLimitMiB is
	Hostname       string `json:"hostname"`
	// "running", "paused", "suspended", "restoring", "exited" or "stopping"
	State        string   `json:"state"`
	DiskFull     bool     `json:"disk_full,omitempty"`     // paused until the host has room for what it writes
	NotAnswering bool     `json:"not_answering,omitempty"` // its VMM process hangs: delete it if that lasts
	ExpiresAt    int64    `json:"expires_at_unix,omitempty"`
	ExitReason   string   `json:"exit_reason,omitempty"`
	ExitDetail   string   `json:"exit_detail,omitempty"`
	VMMMS        *float64 `json:"vmm_ms,omitempty"`   // request to all vCPUs entered, milliseconds
	ReadyMS      *float64 `json:"ready_ms,omitempty"` // request to confirmed by its agent, milliseconds
	HasBranched  bool     `json:"has_branched"`
	BranchCount  int      `json:"branch_count"`
	IdleTimeout  float64  `json:"idle_timeout_secs,omitempty"`
	Pooled       bool     `json:"pooled,omitempty"` // its VMM process was waiting in the pool
	// of its latest branch, which was deleted, and which it needs
	DeletedBytes uint64 `json:"deleted_snapshot_bytes,omitempty"`
	Workspace    string `json:"workspace,omitempty"` // that it belongs to: it ends with that
	Network      string `json:"network"`             // the mode of its network policy
	Limits       Limits `json:"limits,omitzero"`

	Labels map[string]string `json:"labels,omitempty"`

	// snapshot it was last branched to or put back to, else the one it was forked from; empty:
	// deleted
	LatestTag string `json:"latest_tag,omitempty"`
	// requests since then that may have changed files or processes; nil: not known
	Calls *uint64 `json:"calls_since_latest,omitempty"`

	// found at its latest start; nil: its agent, an older one, does not look
	Unique       *Unique `json:"unique,omitempty"`
	UniqueStrict bool    `json:"unique_strict,omitempty"`
}

// Unique says which random number generators in the memory of programs a sandbox has taken over
// from its snapshot. The guest chooses the names.
type Unique struct {
	Reseeded []Generator `json:"reseeded"`
	Repeats  []Generator `json:"repeats"`        // they give what they give in siblings, if they were used before
	More     uint32      `json:"more,omitempty"` // that the lists have no room for
}

// Generator is a random number generator of one process.
type Generator struct {
	PID     uint32 `json:"pid"`
	Program string `json:"program"`
	Library string `json:"library"`
}

// TTLRequest gives a sandbox another end.
type TTLRequest struct {
	TTLSecs *float64 `json:"ttl_secs"` // delete it after so many seconds from now; 0: never
}

// ForkRequest asks for N children of a snapshot.
type ForkRequest struct {
	SnapshotTag    string            `json:"snapshot_tag,omitempty"`
	SourceID       string            `json:"source_id,omitempty"` // a running sandbox, instead of SnapshotTag
	Mode           string            `json:"mode,omitempty"`      // how that is branched: "live", "diff" or "full"
	N              int               `json:"n"`                   // 1 to 1000; 1 if it is not sent
	Env            map[string]string `json:"env,omitempty"`
	HostnamePrefix string            `json:"hostname_prefix,omitempty"`
	AllowPartial   bool              `json:"allow_partial,omitempty"`
	MemoryLimitMiB uint64            `json:"memory_limit_mib,omitempty"` // Limits.MemoryMiB, under its name of forkd 0.5
	TTLSecs        float64           `json:"ttl_secs,omitempty"`         // 0: until deleted

	// IdleTimeoutSecs suspends a child after so long without a request; the next one brings it
	// back. 0: never.
	IdleTimeoutSecs float64 `json:"idle_timeout_secs,omitempty"`

	Network *Network `json:"network,omitempty"` // nil: that of the snapshot, or of the source
	Limits  *Limits  `json:"limits,omitempty"`  // nil: those of the snapshot, or of the source

	// "strict": fail if programs repeat random numbers; "report"; empty: as the snapshot has it
	Unique string `json:"unique,omitempty"`

	Labels map[string]string `json:"labels,omitempty"` // what the caller calls the children; nothing is inherited

	// Of forkd 0.5, where they chose between mechanisms that are one here.
	PerChildNetns bool `json:"per_child_netns,omitempty"`
	Prewarm       bool `json:"prewarm,omitempty"`
	LiveFork      bool `json:"live_fork,omitempty"`
	Hugepages     bool `json:"hugepages,omitempty"`
}

// Forked is the outcome of a fork. Times are in milliseconds.
type Forked struct {
	Sandboxes   []Sandbox `json:"sandboxes"`
	Failed      int       `json:"failed"`             // only with AllowPartial
	Unconfirmed int       `json:"unconfirmed"`        // of Failed: the agent did not confirm
	VMMWallMS   float64   `json:"vmm_wall_ms"`        // request to the last child's vCPUs entered
	ForkWallMS  float64   `json:"fork_wall_ms"`       // request to the last child confirmed
	PauseMS     float64   `json:"pause_ms,omitempty"` // how long the source sandbox stood still
}

// Stats is what a sandbox costs. Memory is in KiB, of its VMM process.
type Stats struct {
	PID        int    `json:"vmm_pid"`
	PSS        uint64 `json:"pss_kib"`
	Private    uint64 `json:"private_kib"`
	GuestDirty uint64 `json:"guest_dirty_kib"` // guest pages written since the fork
	GuestPSS   uint64 `json:"guest_pss_kib"`   // of PSS: guest RAM

	// Since the sandbox's latest_tag. An idle guest writes a little memory too.
	MemorySince uint64 `json:"memory_since_latest_kib"`
	DiskSince   uint64 `json:"disk_since_latest_kib"`

	VMMPrivate uint64 `json:"vmm_private_kib"` // of Private: not guest RAM
	KVMExits   uint64 `json:"kvm_exits"`
	Paused     bool   `json:"paused"`
	Limits     Limits `json:"limits,omitzero"`
	Usage      Usage  `json:"usage"`
}

// RollbackRequest asks for an earlier state of a sandbox.
type RollbackRequest struct {
	To     string `json:"to,omitempty"`     // a snapshot of its line; empty: the one it runs from
	Unique string `json:"unique,omitempty"` // "strict" or "report", from now on; empty: as before
}

// ResumeRequest asks for a sandbox to run on.
type ResumeRequest struct {
	Unique string `json:"unique,omitempty"` // "strict" or "report", from now on; empty: as before
}

// RolledBack is a sandbox that was put back. Times are in milliseconds from the request.
type RolledBack struct {
	Sandbox
	RolledBackTo    string  `json:"rolled_back_to"`
	RollbackVMMMS   float64 `json:"rollback_vmm_ms"`   // its vCPUs ran
	RollbackReadyMS float64 `json:"rollback_ready_ms"` // its agent had confirmed
}
