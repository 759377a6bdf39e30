package v1

// Limits bound what one sandbox takes from its host. They are always given whole: what is left out
// has no limit of its own, whatever it had before.
type Limits struct {
	// of its own memory, its VMM's included; beyond it is killed
	MemoryMiB uint64 `json:"memory_mib,omitempty"`
	// besides, on swap; with MemoryMiB only, and none without it
	SwapMiB uint64  `json:"swap_mib,omitempty"`
	CPUs    float64 `json:"cpus,omitempty"` // processors' worth of time, in every 100 ms
	// its share where sandboxes compete, 1 to 10000; 0: 100
	CPUWeight uint32 `json:"cpu_weight,omitempty"`
	// in each direction, on the disk of the state directory
	IOBytesPerSecond uint64 `json:"io_bytes_per_second,omitempty"`
	IOOpsPerSecond   uint64 `json:"io_ops_per_second,omitempty"` // likewise
}

// SandboxLimits are the limits of a sandbox, with the fields of Limits, and what it uses of them.
type SandboxLimits struct {
	Limits
	Usage Usage `json:"usage"`
}

// Usage is what a sandbox takes from its host, VMM and guest together. It is zero for one without a
// VM, and where the host cannot enforce limits.
type Usage struct {
	MemoryBytes      uint64  `json:"memory_bytes"`     // charged to it now, with page cache and copies made by branches
	OwnMemoryBytes   uint64  `json:"own_memory_bytes"` // of these, what counts against its limit and cannot be taken back
	SwapBytes        uint64  `json:"swap_bytes"`
	CPUSeconds       float64 `json:"cpu_seconds"`       // since its VMM was started
	ThrottledSeconds float64 `json:"throttled_seconds"` // held back by Limits.CPUs
	ThrottledPeriods uint64  `json:"throttled_periods"`
	Threads          uint64  `json:"threads"` // of its VMM
	ReadBytes        uint64  `json:"read_bytes"`
	WrittenBytes     uint64  `json:"written_bytes"`
}
