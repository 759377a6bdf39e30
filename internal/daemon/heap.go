package daemon

import (
	"log/slog"
	"runtime/debug"

	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/cgroup"
)

// Bounds of the daemon's own memory. The limit is 1/heapShare of the available memory, but at least
// minHeap bytes, and never more than half of the available memory. Requests may hold 512 MiB of
// bodies and answers (face.Limits.Memory).
const (
	heapShare = 8
	minHeap   = 1 << 30
)

// heapLimit returns the memory limit of the daemon's Go runtime, in bytes. The argument is the
// memory that the daemon can use. Near the limit, the runtime collects garbage more often.
func heapLimit(memory uint64) uint64 { return min(max(memory/heapShare, minHeap), memory/2) }

// limitHeap sets the memory limit. If the variable GOMEMLIMIT is set, limitHeap does nothing,
// because the runtime has applied the variable at its start.
func limitHeap(goMemLimit string, log *slog.Logger) {
	if goMemLimit != "" {
		return
	}
	limit := heapLimit(min(bake.HostMemoryMiB()<<20, cgroup.MemoryBound()))
	debug.SetMemoryLimit(int64(limit))
	log.Debug("memory of the daemon itself is limited", "bytes", limit)
}
