package daemon

import (
	"log/slog"
	"runtime/debug"

	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/cgroup"
)

// Bounds of the daemon's own memory: a share of the available memory, at least minHeap, but never
// more than half. Requests may hold 512 MiB of bodies and answers (face.Limits.Memory).
const (
	heapShare = 8
	minHeap   = 1 << 30
)

// heapLimit returns the memory limit of the daemon's Go runtime, in bytes, given the memory
// available to the daemon. Near the limit, the runtime collects garbage as hard as it can.
func heapLimit(memory uint64) uint64 { return min(max(memory/heapShare, minHeap), memory/2) }

// limitHeap sets the limit. If the variable GOMEMLIMIT is set, the runtime has already applied it.
func limitHeap(goMemLimit string, log *slog.Logger) {
	if goMemLimit != "" {
		return
	}
	limit := heapLimit(min(bake.HostMemoryMiB()<<20, cgroup.MemoryBound()))
	debug.SetMemoryLimit(int64(limit))
	log.Debug("memory of the daemon itself is limited", "bytes", limit)
}
