package vm

import "fmt"

// Limits limit the host resources of one VM's process. If a field is zero, only the size of the VM
// limits its use of that resource.
type Limits struct {
	// MiB of memory for the VMM and its guest. The process is killed if it exceeds this limit.
	MemoryMiB uint64 `json:"memory_mib,omitempty" yaml:"memory_mib"`
	// MiB of swap in addition to MemoryMiB, which must be set too. 0 means no swap.
	SwapMiB   uint64  `json:"swap_mib,omitempty" yaml:"swap_mib"`
	CPUs      float64 `json:"cpus,omitempty" yaml:"cpus"`             // CPU time, in CPUs, averaged over 100 ms
	CPUWeight uint32  `json:"cpu_weight,omitempty" yaml:"cpu_weight"` // weight if VMs compete for CPU time; 0 means 100
	// Bytes per second in each direction, on the disk of the daemon's state directory.
	IOBytesPerSecond uint64 `json:"io_bytes_per_second,omitempty" yaml:"io_bytes_per_second"`
	// Operations per second in each direction, on the disk of the daemon's state directory.
	IOOpsPerSecond uint64 `json:"io_ops_per_second,omitempty" yaml:"io_ops_per_second"`
}

// MinMemoryMiB is the smallest memory limit. With less memory, a VMM might fail before its guest
// runs.
const MinMemoryMiB = 32

// Bounds of the other fields. Some bounds are those of the kernel (cgroup-v2.rst), and the other
// bounds prevent overflows in sums.
const (
	minCPUs      = 0.01 // the kernel requires at least 1 ms per period
	maxCPUs      = 4096
	maxWeight    = 10_000
	maxMiB       = 1 << 30
	maxPerSecond = 1 << 40
)

// Minimum disk rates. The kernel writes a guest's data to disk at the guest's rate, and other
// processes wait for these writes. The daemon waits when it makes a branch durable, and every
// process that writes waits for the journal of the host's file system.
const (
	minBytesPerSecond = 1 << 20
	minOpsPerSecond   = 64
)

// LimitError means that a limit is out of range.
type LimitError struct {
	Field  string // JSON name
	Reason string
}

func (e *LimitError) Error() string { return e.Field + ": " + e.Reason }

// Check returns a *LimitError for a field that is out of range.
func (l Limits) Check() error {
	wrong := func(field, format string, args ...any) error {
		return &LimitError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case l.MemoryMiB != 0 && (l.MemoryMiB < MinMemoryMiB || l.MemoryMiB > maxMiB):
		return wrong("memory_mib", "%d: want %d or more; the VMM needs some of it", l.MemoryMiB, MinMemoryMiB)
	case l.SwapMiB != 0 && l.MemoryMiB == 0:
		return wrong("swap_mib", "%d: want memory_mib too", l.SwapMiB)
	case l.SwapMiB > maxMiB:
		return wrong("swap_mib", "%d: want at most %d", l.SwapMiB, maxMiB)
	case l.CPUs != 0 && !(l.CPUs >= minCPUs && l.CPUs <= maxCPUs): // written so that NaN is out of range too
		return wrong("cpus", "%g: want %g to %d", l.CPUs, minCPUs, maxCPUs)
	case l.CPUWeight > maxWeight:
		return wrong("cpu_weight", "%d: want 1 to %d", l.CPUWeight, maxWeight)
	case l.IOBytesPerSecond != 0 && (l.IOBytesPerSecond < minBytesPerSecond || l.IOBytesPerSecond > maxPerSecond):
		return wrong("io_bytes_per_second", "%d: want %d to %d", l.IOBytesPerSecond, minBytesPerSecond, uint64(maxPerSecond))
	case l.IOOpsPerSecond != 0 && (l.IOOpsPerSecond < minOpsPerSecond || l.IOOpsPerSecond > maxPerSecond):
		return wrong("io_ops_per_second", "%d: want %d to %d", l.IOOpsPerSecond, minOpsPerSecond, uint64(maxPerSecond))
	}
	return nil
}
