package v1

// Snapshot is a parent from which sandboxes are forked.
type Snapshot struct {
	Tag          string   `json:"tag"`
	Dir          string   `json:"dir"`
	CreatedAt    int64    `json:"created_at_unix"`
	BranchedFrom string   `json:"branched_from,omitempty"`
	Warning      string   `json:"warning,omitempty"`
	Status       string   `json:"status"`         // "writing", "ready" or "failed"
	Step         string   `json:"step,omitempty"` // current step of a running bake, as text
	Bootable     bool     `json:"bootable"`
	MemSizeMiB   uint64   `json:"mem_size_mib,omitempty"`
	VCPUs        uint32   `json:"vcpus,omitempty"`
	CPUTemplate  string   `json:"cpu_template,omitempty"`
	VolumeSlots  uint32   `json:"volume_slots,omitempty"` // number of volumes that a child can mount
	Accel        string   `json:"accel,omitempty"`
	Kernel       string   `json:"kernel,omitempty"`
	Warm         []string `json:"warm,omitempty"`
	BaseImage    string   `json:"base_image,omitempty"` // path of the disk's base image; in lists only
	Sandboxes    int      `json:"sandboxes"`            // number of sandboxes that run from this snapshot
	Transient    bool     `json:"transient,omitempty"`  // deleted when the last of its sandboxes is deleted
	DiskOnly     bool     `json:"disk_only,omitempty"`  // the snapshot has no memory, so its forks boot
	Arriving     bool     `json:"arriving,omitempty"`   // some parts have not arrived; for now, it can only be forked
	Encrypted    bool     `json:"encrypted,omitempty"`  // its files are encrypted on the disk
	Built        bool     `json:"built,omitempty"`      // it is the result of a build, not a branch that a client made

	// Set for a branch. Times are in milliseconds; ReadyMS and PersistedMS are measured from the
	// request.
	SandboxID string `json:"sandbox_id,omitempty"`
	// Tag of the sandbox's latest snapshot before the branch. Empty if that snapshot is
	// BranchedFrom or was deleted.
	After    string   `json:"after,omitempty"`
	Mode     string   `json:"mode,omitempty"`
	Fallback string   `json:"fallback_reason,omitempty"` // why the mode differs from the requested one
	PauseMS  *float64 `json:"pause_ms,omitempty"`        // how long the sandbox was paused
	// Duration of the second pause, which happens if the sandbox writes faster than its pages are
	// copied.
	StormStopMS *float64 `json:"storm_stop_ms,omitempty"`
	ReadyMS     *float64 `json:"ready_ms,omitempty"` // until sandboxes could be forked from it
	// Bytes of memory in the snapshot itself: the bytes that the sandbox has written since its
	// previous branch.
	DirtyBytes *uint64 `json:"dirty_bytes,omitempty"`
	// Part of DirtyBytes that the sandbox now shares with the snapshot. Only in the response to a
	// branch.
	SharedBytes *uint64  `json:"shared_bytes,omitempty"`
	DiffBytes   *uint64  `json:"diff_physical_bytes,omitempty"` // DirtyBytes, under its name in forkd 0.5
	DiffMS      *float64 `json:"diff_ms,omitempty"`             // PauseMS of a diff branch, under its name in forkd 0.5
	// For forkd 0.5: size that a diff branch would have as a full branch.
	DiffLogical *uint64 `json:"diff_logical_bytes,omitempty"`
	Faults      *uint64 `json:"faults,omitempty"` // pages copied because the sandbox wrote to them during the copy

	// Persist is "pending", "done" or "failed". If it is "failed", the write is retried, and the
	// snapshot exists as long as its layer in RAM exists.
	Persist     string   `json:"persist_status"`
	PersistedMS *float64 `json:"persisted_ms,omitempty"`

	Labels map[string]string `json:"labels,omitempty"` // set by the request for the branch
}

// SnapshotDetail contains everything that the daemon knows about a snapshot. Sizes are in bytes.
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
	Sealed         bool     `json:"sealed"`    // the digests of the files are recorded
}

// BakeRequest requests a snapshot. Paths are paths on the daemon's host.
type BakeRequest struct {
	Tag    string `json:"tag"`
	Kernel string `json:"kernel,omitempty"` // empty: the kernel of the snapshot From
	Initrd string `json:"initrd,omitempty"` // empty: the daemon creates one
	Rootfs string `json:"rootfs,omitempty"`
	// Tag of a snapshot whose disk the parent boots from, instead of rootfs. If kernel,
	// mem_size_mib, vcpus, cpu_template, volume_slots, network, limits or unique is omitted, the
	// snapshot's value is used. The variables in env are added to the snapshot's env.
	From              string            `json:"from,omitempty"`
	MemSizeMiB        uint64            `json:"mem_size_mib,omitempty"` // 0 means 512
	VCPUs             uint32            `json:"vcpus,omitempty"`        // 0 means 1
	CPUTemplate       string            `json:"cpu_template,omitempty"`
	VolumeSlots       uint32            `json:"volume_slots,omitempty"` // number of volumes that a child can mount
	Env               map[string]string `json:"env,omitempty"`
	Warmup            Warmup            `json:"warmup,omitzero"`
	ReadyTimeoutSecs  float64           `json:"ready_timeout_secs,omitempty"`
	WarmupTimeoutSecs float64           `json:"warmup_timeout_secs,omitempty"`
	// Policy for the warm-up and for children. nil: "none" for the warm-up, "public" for children.
	Network *Network `json:"network,omitempty"`

	Limits *Limits `json:"limits,omitempty"` // default limits of children
	Unique string  `json:"unique,omitempty"` // "strict" or "report"; default for children

	Encrypt bool `json:"encrypt,omitempty"` // encrypt the snapshot

	// Options of forkd 0.5. The root disk is always writable through a private layer, and the agent
	// announces readiness. A request that names a tap device is refused, because there are no tap
	// devices.
	RW           bool    `json:"rw,omitempty"`
	Tap          string  `json:"tap,omitempty"`
	BootWaitSecs float64 `json:"boot_wait_secs,omitempty"`
}

// Warmup runs in a parent before it is saved: first the commands one after another, each by /bin/sh
// -c, then the Python code in the warm interpreter.
type Warmup struct {
	Commands []string `json:"commands,omitempty"`
	Python   string   `json:"python,omitempty"`
}

// Baked is a new snapshot, with the durations of its steps in milliseconds.
type Baked struct {
	Snapshot
	BootMS           float64  `json:"boot_ms"`
	WarmupMS         float64  `json:"warmup_ms"`
	SaveMS           float64  `json:"save_ms"`
	PersistMS        float64  `json:"persist_ms"`
	MemoryLayerBytes uint64   `json:"memory_layer_bytes"`
	WarmupOutput     string   `json:"warmup_output,omitempty"` // last part of the output of the warm-up steps
	GuestErrors      []string `json:"guest_errors,omitempty"`  // what the agent could not set up in the guest
}

// BranchRequest requests a snapshot of a running sandbox.
type BranchRequest struct {
	Tag       string `json:"tag,omitempty"`        // empty: the daemon chooses one
	Mode      string `json:"mode,omitempty"`       // "live" (also if empty), "diff" or "full"
	ParentTag string `json:"parent_tag,omitempty"` // refuse if the sandbox runs from another snapshot
	// If false, the response is sent when the sandbox runs again, before the snapshot is complete.
	Wait *bool `json:"wait,omitempty"`
	// If false, only the disk is saved, while the guest's file system is frozen. Forks of such a
	// snapshot boot.
	Memory *bool `json:"memory,omitempty"`
	// Encrypt the snapshot. A branch of a fork of an encrypted snapshot is always encrypted.
	Encrypt bool `json:"encrypt,omitempty"`

	Labels map[string]string `json:"labels,omitempty"` // labels of the snapshot, which its forks do not inherit

	// Mode in the form of forkd 0.5. MeasureDiff is the same as Diff.
	Diff        bool `json:"diff,omitempty"`
	Live        bool `json:"live,omitempty"`
	MeasureDiff bool `json:"measure_diff,omitempty"`
}

// CompactRequest requests a snapshot that has the content of another snapshot, but a single layer
// of its own.
type CompactRequest struct {
	To string `json:"to"`
}

// Verified means that every file of a snapshot matches its digest.
type Verified struct {
	OK       bool    `json:"ok"`
	VerifyMS float64 `json:"verify_ms"`
}

// Family is the answer to a request that encrypts, decrypts or shreds a snapshot.
type Family struct {
	Tags []string `json:"tags"` // snapshots that have changed; empty: there was nothing to do
	// Snapshots that share layers with the family. The shared layers stay unencrypted.
	InClear []string `json:"in_clear"`
}
