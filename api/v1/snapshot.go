package v1

// Snapshot is a parent that sandboxes are forked from.
type Snapshot struct {
	Tag          string   `json:"tag"`
	Dir          string   `json:"dir"`
	CreatedAt    int64    `json:"created_at_unix"`
	BranchedFrom string   `json:"branched_from,omitempty"`
	Warning      string   `json:"warning,omitempty"`
	Status       string   `json:"status"`         // "writing", "ready" or "failed"
	Step         string   `json:"step,omitempty"` // of a bake that is under way, in words
	Bootable     bool     `json:"bootable"`
	MemSizeMiB   uint64   `json:"mem_size_mib,omitempty"`
	VCPUs        uint32   `json:"vcpus,omitempty"`
	CPUTemplate  string   `json:"cpu_template,omitempty"`
	Accel        string   `json:"accel,omitempty"`
	Kernel       string   `json:"kernel,omitempty"`
	Warm         []string `json:"warm,omitempty"`
	BaseImage    string   `json:"base_image,omitempty"` // path of the image of its disk; in lists only
	Sandboxes    int      `json:"sandboxes"`            // running from it
	Transient    bool     `json:"transient,omitempty"`  // removed with the last of them
	DiskOnly     bool     `json:"disk_only,omitempty"`  // it has no memory: forks of it boot

	// Of a branch. Times are in milliseconds; those of ReadyMS and PersistedMS begin with the
	// request.
	SandboxID string `json:"sandbox_id,omitempty"`
	// the snapshot that the sandbox was at before; empty: the one it ran from, or deleted
	After       string   `json:"after,omitempty"`
	Mode        string   `json:"mode,omitempty"`
	Fallback    string   `json:"fallback_reason,omitempty"` // why another mode than the one asked for
	PauseMS     *float64 `json:"pause_ms,omitempty"`        // the sandbox stood still
	StormStopMS *float64 `json:"storm_stop_ms,omitempty"`   // and again, because it wrote faster than could be copied
	ReadyMS     *float64 `json:"ready_ms,omitempty"`        // sandboxes can be forked from it
	DirtyBytes  *uint64  `json:"dirty_bytes,omitempty"`     // memory that was saved: written since the branch before
	// of it, now shared by the sandbox; in the answer to a branch only
	SharedBytes *uint64  `json:"shared_bytes,omitempty"`
	DiffBytes   *uint64  `json:"diff_physical_bytes,omitempty"` // the same, under the name of forkd 0.5
	DiffMS      *float64 `json:"diff_ms,omitempty"`             // PauseMS of a diff branch, under the name of forkd 0.5
	// of forkd 0.5: what a diff branch would have saved as a full one
	DiffLogical *uint64 `json:"diff_logical_bytes,omitempty"`
	Faults      *uint64 `json:"faults,omitempty"` // pages copied because the sandbox wrote them meanwhile

	// Persist is "pending", "done", or "failed": it lives as long as its layer in RAM, and writing
	// it is tried again.
	Persist     string   `json:"persist_status"`
	PersistedMS *float64 `json:"persisted_ms,omitempty"`

	Labels map[string]string `json:"labels,omitempty"` // given with the request for the branch
}

// SnapshotDetail is everything the daemon knows about a snapshot. Sizes are in bytes.
type SnapshotDetail struct {
	Snapshot
	ID             string   `json:"id"`
	MemoryLogical  uint64   `json:"memory_logical_bytes"`
	MemoryPhysical uint64   `json:"memory_physical_bytes"`
	DiskPhysical   uint64   `json:"disk_physical_bytes"`
	VMStateBytes   uint64   `json:"vmstate_bytes"`
	ParentTag      string   `json:"parent_tag,omitempty"`
	ParentHash     string   `json:"parent_content_hash,omitempty"`
	ChainDepth     int      `json:"chain_depth"`
	MemoryLayers   int      `json:"memory_layers"`
	DiskLayers     int      `json:"disk_layers"`
	Dependents     []string `json:"dependents"`
	Ancestors      []string `json:"ancestors"` // root first
	Sealed         bool     `json:"sealed"`    // digests are recorded
}

// BakeRequest asks for a snapshot. Paths are those of the daemon's host.
type BakeRequest struct {
	Tag    string `json:"tag"`
	Kernel string `json:"kernel,omitempty"` // empty with from: the snapshot's
	Initrd string `json:"initrd,omitempty"` // empty: the daemon makes one
	Rootfs string `json:"rootfs,omitempty"`
	// tag of a snapshot whose disk the parent boots from, in the place of rootfs. What is left out of
	// kernel, mem_size_mib, vcpus, cpu_template, network, limits and unique is that snapshot's; env is
	// added to its own.
	From              string            `json:"from,omitempty"`
	MemSizeMiB        uint64            `json:"mem_size_mib,omitempty"` // 0: 512
	VCPUs             uint32            `json:"vcpus,omitempty"`        // 0: 1
	CPUTemplate       string            `json:"cpu_template,omitempty"`
	Env               map[string]string `json:"env,omitempty"`
	Warmup            Warmup            `json:"warmup,omitzero"`
	ReadyTimeoutSecs  float64           `json:"ready_timeout_secs,omitempty"`
	WarmupTimeoutSecs float64           `json:"warmup_timeout_secs,omitempty"`
	// of the warm-up and of children; nil: "none" for the first, "public" for these
	Network *Network `json:"network,omitempty"`

	Limits *Limits `json:"limits,omitempty"` // of children that are given none
	Unique string  `json:"unique,omitempty"` // "strict" or "report", of children that are given none

	// Of forkd 0.5. The root disk is always writable through a private layer, readiness is
	// announced by the agent, and a tap device that is named is refused: there is none.
	RW           bool    `json:"rw,omitempty"`
	Tap          string  `json:"tap,omitempty"`
	BootWaitSecs float64 `json:"boot_wait_secs,omitempty"`
}

// Warmup is run in a parent before it is saved: the commands one after another, each by /bin/sh -c,
// then the Python code in the warm interpreter.
type Warmup struct {
	Commands []string `json:"commands,omitempty"`
	Python   string   `json:"python,omitempty"`
}

// Baked is a new snapshot and how long its steps took, in milliseconds.
type Baked struct {
	Snapshot
	BootMS           float64  `json:"boot_ms"`
	WarmupMS         float64  `json:"warmup_ms"`
	SaveMS           float64  `json:"save_ms"`
	PersistMS        float64  `json:"persist_ms"`
	MemoryLayerBytes uint64   `json:"memory_layer_bytes"`
	WarmupOutput     string   `json:"warmup_output,omitempty"` // the last of what the warm-up steps wrote
	GuestErrors      []string `json:"guest_errors,omitempty"`  // what the guest's agent could not set up
}

// BranchRequest asks for a snapshot of a running sandbox.
type BranchRequest struct {
	Tag       string `json:"tag,omitempty"`        // empty: the daemon chooses one
	Mode      string `json:"mode,omitempty"`       // "live" (also if empty), "diff" or "full"
	ParentTag string `json:"parent_tag,omitempty"` // refuse if the sandbox does not run from this snapshot
	// false: answer when the sandbox runs again, before the snapshot is complete
	Wait *bool `json:"wait,omitempty"`
	// false: save the disk alone, with the guest's file system at rest; forks of the snapshot boot
	Memory *bool `json:"memory,omitempty"`

	Labels map[string]string `json:"labels,omitempty"` // of the snapshot, which what is forked from it does not inherit

	// The older spelling of Mode, of forkd 0.5. MeasureDiff is Diff.
	Diff        bool `json:"diff,omitempty"`
	Live        bool `json:"live,omitempty"`
	MeasureDiff bool `json:"measure_diff,omitempty"`
}

// CompactRequest asks for a snapshot with the content of another and no layers but its own.
type CompactRequest struct {
	To string `json:"to"`
}

// Verified says that every file of a snapshot is as its digest has it.
type Verified struct {
	OK       bool    `json:"ok"`
	VerifyMS float64 `json:"verify_ms"`
}
