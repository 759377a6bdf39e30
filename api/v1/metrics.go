package v1

// Steps between the points of a history.
const (
	StepSecond = "second" // a point for each second of the last ten minutes
	StepMinute = "minute" // a point for each minute of the last day
)

// Metrics is the history of the host resources that a sandbox and its VMM use. There are no points
// for times at which the sandbox did not run. If the host cannot enforce limits, there are no
// points at all.
type Metrics struct {
	BeganAt  float64       `json:"began_at_unix"` // start of the daemon; there are no earlier points
	StepSecs int           `json:"step_secs"`     // 1 or 60
	Points   []MetricPoint `json:"points"`        // oldest first
}

// MetricPoint is a sandbox's use of its host at one time. A point that stands for a minute has the
// maximum of the memory in that minute, and the means of the other figures.
type MetricPoint struct {
	At          float64 `json:"at_unix"`
	CPUs        float64 `json:"cpus"`             // CPUs in use; 0.5 is half of one CPU's time
	MemoryBytes uint64  `json:"memory_bytes"`     // as in Usage
	OwnBytes    uint64  `json:"own_memory_bytes"` // as in Usage
	ReadRate    float64 `json:"read_bytes_per_second"`
	WrittenRate float64 `json:"written_bytes_per_second"`
}

// HostMetrics is the history of a daemon's host.
type HostMetrics struct {
	BeganAt     float64     `json:"began_at_unix"` // start of the daemon; there are no earlier points
	StepSecs    int         `json:"step_secs"`     // 1 or 60
	CPUs        int         `json:"cpus"`          // CPUs of the host
	MemoryBytes uint64      `json:"memory_bytes"`  // memory of the host
	Points      []HostPoint `json:"points"`        // oldest first
}

// HostPoint describes the host at one time. If a point stands for a minute, its amounts of memory
// and its numbers of sandboxes and processes are the maximums in that minute. The other figures are
// means.
type HostPoint struct {
	At             float64 `json:"at_unix"`
	CPUs           float64 `json:"cpus"`             // CPUs in use by all processes
	SandboxCPUs    float64 `json:"sandbox_cpus"`     // CPUs in use by sandboxes, pooled VMMs and forkd-net
	AvailableBytes uint64  `json:"available_bytes"`  // memory that new processes can use
	TmpfsBytes     uint64  `json:"tmpfs_bytes"`      // memory of files on tmpfs, such as hot snapshots
	MemoryBytes    uint64  `json:"memory_bytes"`     // memory of sandboxes, pooled VMMs and forkd-net, with page cache
	OwnBytes       uint64  `json:"own_memory_bytes"` // part of MemoryBytes that the kernel cannot reclaim
	Sandboxes      int     `json:"sandboxes"`        // number of sandboxes, in any state
	Running        int     `json:"running"`
	PoolShells     int     `json:"pool_shells"`         // VMM processes that wait for a fork
	ChildrenRate   float64 `json:"children_per_second"` // children that became ready in each second
	// Mean time from the request until a child was ready; absent if no child became ready.
	ReadyMS float64 `json:"ready_ms,omitempty"`
}
