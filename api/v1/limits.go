package v1

// Limits bounds a sandbox's use of host resources. A request replaces all limits: an omitted field
// means no limit, not the previous one.
type Limits struct {
	// limit of the sandbox's own memory, including its VMM; a sandbox above the limit is killed
	MemoryMiB uint64 `json:"memory_mib,omitempty"`
	// maximum swap, in addition to MemoryMiB, which must be set; 0: no swap
	SwapMiB uint64  `json:"swap_mib,omitempty"`
	CPUs    float64 `json:"cpus,omitempty"` // CPU time, in CPUs, averaged over 100 ms
	// relative share when sandboxes compete for CPUs, 1 to 10000; 0: 100
	CPUWeight uint32 `json:"cpu_weight,omitempty"`
	// in each direction, on the disk of the state directory
	IOBytesPerSecond uint64 `json:"io_bytes_per_second,omitempty"`
	IOOpsPerSecond   uint64 `json:"io_ops_per_second,omitempty"` // likewise
}

// SandboxLimits holds the limits of a sandbox, and its current usage.
type SandboxLimits struct {
	Limits
	Usage Usage `json:"usage"`
}

// Usage is a sandbox's use of host resources, including its VMM. It is zero for a sandbox without a
// VM, and if the host cannot enforce limits.
type Usage struct {
	MemoryBytes      uint64  `json:"memory_bytes"`     // charged to it now, including page cache and branches' copies
	OwnMemoryBytes   uint64  `json:"own_memory_bytes"` // part that counts against its limit and cannot be reclaimed
	SwapBytes        uint64  `json:"swap_bytes"`
	CPUSeconds       float64 `json:"cpu_seconds"`       // since its VMM started
	ThrottledSeconds float64 `json:"throttled_seconds"` // time throttled by Limits.CPUs
	ThrottledPeriods uint64  `json:"throttled_periods"`
	Threads          uint64  `json:"threads"` // of its VMM
	ReadBytes        uint64  `json:"read_bytes"`
	WrittenBytes     uint64  `json:"written_bytes"`
}
