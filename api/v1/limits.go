package v1

// Limits bounds a sandbox's use of host resources. A request replaces all limits. An omitted field
// means no limit, and not the previous limit.
type Limits struct {
	// MiB of memory for the sandbox and its VMM, not counting the copies of the sandbox's memory
	// that its branches keep in RAM. The sandbox is killed if it needs more.
	MemoryMiB uint64 `json:"memory_mib,omitempty"`
	// MiB of swap in addition to MemoryMiB, which must also be set. 0: no swap.
	SwapMiB uint64  `json:"swap_mib,omitempty"`
	CPUs    float64 `json:"cpus,omitempty"` // CPU time, in CPUs, averaged over 100 ms
	// Relative share of CPU time when sandboxes compete for CPUs, 1 to 10000. 0 means 100.
	CPUWeight uint32 `json:"cpu_weight,omitempty"`
	// Bytes per second in each direction, on the disk of the state directory.
	IOBytesPerSecond uint64 `json:"io_bytes_per_second,omitempty"`
	IOOpsPerSecond   uint64 `json:"io_ops_per_second,omitempty"` // operations per second, on the same disk
}

// SandboxLimits holds the limits of a sandbox, and its current usage.
type SandboxLimits struct {
	Limits
	Usage Usage `json:"usage"`
}

// Usage is a sandbox's use of host resources, including its VMM. It is zero for a sandbox without a
// VM, and if the host cannot enforce limits.
type Usage struct {
	// Memory charged to the sandbox now. It includes page cache, and the copies of the sandbox's
	// memory that its branches keep in RAM.
	MemoryBytes uint64 `json:"memory_bytes"`
	// Part of MemoryBytes that counts against the limit and cannot be reclaimed.
	OwnMemoryBytes   uint64  `json:"own_memory_bytes"`
	SwapBytes        uint64  `json:"swap_bytes"`
	CPUSeconds       float64 `json:"cpu_seconds"`       // CPU time since the sandbox's VMM started
	ThrottledSeconds float64 `json:"throttled_seconds"` // time during which Limits.CPUs throttled the sandbox
	ThrottledPeriods uint64  `json:"throttled_periods"`
	Threads          uint64  `json:"threads"` // threads of the VMM
	ReadBytes        uint64  `json:"read_bytes"`
	WrittenBytes     uint64  `json:"written_bytes"`
	// CPUs in use when the daemon last sampled the sandbox, usually in the last second. Nil if there
	// was no sample in the last 10 seconds.
	CPUs *float64 `json:"cpus,omitempty"`
}
