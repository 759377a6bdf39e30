package v1

// Sandbox is a VM forked from a snapshot.
type Sandbox struct {
	ID          string `json:"id"`
	SnapshotTag string `json:"snapshot_tag"`
	// Address for clients of forkd 0.5, served by `forkd forward-guests`; empty if the sandbox has
	// no such address.
	GuestAddr      string `json:"guest_addr"`
	CreatedAt      int64  `json:"created_at_unix"`
	Created        string `json:"created_at"`                      // CreatedAt to the nanosecond, in the form of RFC 3339
	PID            int    `json:"pid,omitempty"`                   // process id of the VMM
	MemoryLimitMiB uint64 `json:"memory_limit_mib,omitempty"`      // Limits.MemoryMiB, under its name in forkd 0.5
	LimitEnforced  bool   `json:"memory_limit_enforced,omitempty"` // set together with MemoryLimitMiB
	Hostname       string `json:"hostname"`
	// "running", "paused", "suspended", "restoring", "exited" or "stopping"
	State        string   `json:"state"`
	DiskFull     bool     `json:"disk_full,omitempty"`     // paused until the host has space for its writes
	NotAnswering bool     `json:"not_answering,omitempty"` // the VMM process hangs; delete the sandbox if that persists
	ExpiresAt    int64    `json:"expires_at_unix,omitempty"`
	ExitReason   string   `json:"exit_reason,omitempty"`
	ExitDetail   string   `json:"exit_detail,omitempty"`
	VMMMS        *float64 `json:"vmm_ms,omitempty"`   // milliseconds from the request until all vCPUs ran
	ReadyMS      *float64 `json:"ready_ms,omitempty"` // milliseconds from the request until the agent had confirmed
	HasBranched  bool     `json:"has_branched"`
	BranchCount  int      `json:"branch_count"`
	IdleTimeout  float64  `json:"idle_timeout_secs,omitempty"`
	Pooled       bool     `json:"pooled,omitempty"` // the VMM process was waiting in the pool
	// Size of the latest branch, if that branch was deleted and the sandbox still needs its files.
	DeletedBytes uint64 `json:"deleted_snapshot_bytes,omitempty"`
	// Client that made the sandbox, such as "token:NAME"; "local" if the daemon required no
	// credentials. Empty if unknown, or if it is hidden from the client of the request.
	Owner string `json:"owner,omitempty"`
	// The workspace to which the sandbox belongs, and with which it is deleted.
	Workspace string        `json:"workspace,omitempty"`
	Volumes   []VolumeMount `json:"volumes,omitempty"`
	Network   string        `json:"network"` // mode of the network policy
	Limits    Limits        `json:"limits,omitzero"`

	Labels map[string]string `json:"labels,omitempty"`

	// Snapshot of the most recent branch or rollback; if there was none, the snapshot from which
	// the sandbox was forked. Empty if the snapshot was deleted.
	LatestTag string `json:"latest_tag,omitempty"`
	// Number of requests that may have changed files or processes since the snapshot LatestTag; nil
	// if unknown.
	Calls *uint64 `json:"calls_since_latest,omitempty"`

	// Result of the agent's check at the latest start; nil if the agent is too old for the check.
	Unique       *Unique `json:"unique,omitempty"`
	UniqueStrict bool    `json:"unique_strict,omitempty"`
}

// Unique lists random number generators in the memory of a sandbox's programs. The sandbox has
// inherited the programs from its snapshot. The guest chooses the names in the lists.
type Unique struct {
	Reseeded []Generator `json:"reseeded"`
	// Generators that, if they were used before the snapshot, give the same numbers in all
	// siblings.
	Repeats []Generator `json:"repeats"`
	More    uint32      `json:"more,omitempty"` // number of generators that do not fit into the lists
}

// Generator is a random number generator of one process.
type Generator struct {
	PID     uint32 `json:"pid"`
	Program string `json:"program"`
	Library string `json:"library"`
}

// TTLRequest changes the time at which a sandbox is deleted.
type TTLRequest struct {
	TTLSecs *float64 `json:"ttl_secs"` // delete the sandbox this many seconds from now; 0: never
}

// ForkRequest requests N children of a snapshot.
type ForkRequest struct {
	SnapshotTag string `json:"snapshot_tag,omitempty"`
	// Id of a running sandbox to fork from, instead of SnapshotTag.
	SourceID       string            `json:"source_id,omitempty"`
	Mode           string            `json:"mode,omitempty"` // how SourceID is branched: "live", "diff" or "full"
	N              int               `json:"n"`              // 1 to 1000; omitted: 1
	Env            map[string]string `json:"env,omitempty"`
	HostnamePrefix string            `json:"hostname_prefix,omitempty"`
	AllowPartial   bool              `json:"allow_partial,omitempty"`
	MemoryLimitMiB uint64            `json:"memory_limit_mib,omitempty"` // Limits.MemoryMiB, under its name in forkd 0.5
	TTLSecs        float64           `json:"ttl_secs,omitempty"`         // 0: the children stay until they are deleted

	// IdleTimeoutSecs is the time without a request after which a child is suspended; 0: children are
	// not suspended for being idle. The next request resumes the child.
	IdleTimeoutSecs float64 `json:"idle_timeout_secs,omitempty"`

	Network *Network `json:"network,omitempty"` // nil: the policy of the snapshot or the source
	Limits  *Limits  `json:"limits,omitempty"`  // nil: the limits of the snapshot or the source
	// HoldEffects is a hold for the children, in addition to the hold of the snapshot or the
	// source. nil: only the hold of the snapshot or the source, even if Network is set.
	HoldEffects *Hold  `json:"hold_effects,omitempty"`
	Hooks       *Hooks `json:"hooks,omitempty"` // nil: the hooks of the snapshot or the source

	// "strict": fail if programs repeat random numbers; "report": only report them. Empty: as the
	// snapshot says.
	Unique string `json:"unique,omitempty"`

	Labels map[string]string `json:"labels,omitempty"` // labels of the children; nothing is inherited

	// Volumes that each child mounts. The snapshot must have at least as many volume slots.
	Volumes []VolumeMount `json:"volumes,omitempty"`

	// Options that clients of forkd 0.5 send. The daemon accepts and ignores them.
	PerChildNetns bool `json:"per_child_netns,omitempty"`
	Prewarm       bool `json:"prewarm,omitempty"`
	LiveFork      bool `json:"live_fork,omitempty"`
	Hugepages     bool `json:"hugepages,omitempty"`
}

// Forked is the result of a fork. Times are in milliseconds.
type Forked struct {
	Sandboxes   []Sandbox `json:"sandboxes"`
	Failed      int       `json:"failed"`             // children that did not start; only with AllowPartial
	Unconfirmed int       `json:"unconfirmed"`        // part of Failed: children whose agent did not confirm
	VMMWallMS   float64   `json:"vmm_wall_ms"`        // from the request until the vCPUs of the last child ran
	ForkWallMS  float64   `json:"fork_wall_ms"`       // from the request until the last child had confirmed
	PauseMS     float64   `json:"pause_ms,omitempty"` // how long the source sandbox was paused
}

// Stats describes a sandbox's memory use. Values are in KiB, for its VMM process.
type Stats struct {
	PID        int    `json:"vmm_pid"`
	PSS        uint64 `json:"pss_kib"`
	Private    uint64 `json:"private_kib"`
	GuestDirty uint64 `json:"guest_dirty_kib"` // guest pages written since the fork
	GuestPSS   uint64 `json:"guest_pss_kib"`   // part of PSS: guest RAM

	// Written since the sandbox's latest_tag. An idle guest also writes a little memory.
	MemorySince uint64 `json:"memory_since_latest_kib"`
	DiskSince   uint64 `json:"disk_since_latest_kib"`

	VMMPrivate uint64 `json:"vmm_private_kib"` // part of Private: not guest RAM
	KVMExits   uint64 `json:"kvm_exits"`
	Paused     bool   `json:"paused"`
	Limits     Limits `json:"limits,omitzero"`
	Usage      Usage  `json:"usage"`
}

// Written has the figures of Stats that are cheap to measure: the daemon need not read the page tables
// of the VMM process.
type Written struct {
	GuestDirty  uint64 `json:"guest_dirty_kib"`
	MemorySince uint64 `json:"memory_since_latest_kib"`
	DiskSince   uint64 `json:"disk_since_latest_kib"`
	Usage       Usage  `json:"usage"`
}

// RollbackRequest asks to put a sandbox back to an earlier state.
type RollbackRequest struct {
	To     string `json:"to,omitempty"`     // a snapshot of the sandbox's family; empty: the snapshot that it runs from
	Unique string `json:"unique,omitempty"` // "strict" or "report", from now on; empty: unchanged
}

// PromoteRequest requests that a sandbox take over the present state of another sandbox of its
// family.
type PromoteRequest struct {
	From   string `json:"from"`             // id of the other sandbox
	Tag    string `json:"tag,omitempty"`    // tag of a snapshot of From's state; empty: the snapshot is not kept
	Mode   string `json:"mode,omitempty"`   // mode of the branch that saves From's state; empty: live
	Unique string `json:"unique,omitempty"` // "strict" or "report", from now on; empty: unchanged
}

// ResumeRequest requests that a sandbox continue.
type ResumeRequest struct {
	Unique string `json:"unique,omitempty"` // "strict" or "report", from now on; empty: unchanged
}

// SuspendRequest requests that a sandbox be saved to disk. A sandbox that runs from an encrypted
// snapshot always gets an encrypted suspended state.
type SuspendRequest struct {
	Encrypt bool `json:"encrypt,omitempty"` // encrypt the suspended state
}

// RolledBack is a sandbox after a rollback. Times are in milliseconds from the request.
type RolledBack struct {
	Sandbox
	RolledBackTo    string  `json:"rolled_back_to"`
	RollbackVMMMS   float64 `json:"rollback_vmm_ms"`   // until the vCPUs ran
	RollbackReadyMS float64 `json:"rollback_ready_ms"` // until the agent had confirmed
}
