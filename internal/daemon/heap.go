package daemon

import (
	"log/slog"
	"runtime/debug"

	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/cgroup"
)

// Bounds of the daemon's own memory: a share of what there is, the least that it has unless that is
// more than half of it. Requests may hold 512 MiB of bodies and answers (face.Limits.Memory).
const (
	heapShare = 8
	minHeap   = 1 << 30
)

// heapLimit is how much memory the daemon's Go runtime may take before it does all that it can to
// take no more, in bytes, where there is so much for the daemon.
func heapLimit(memory uint64) uint64 { return min(max(memory/heapShare, minHeap), memory/2) }

// limitHeap sets the limit. If the variable GOMEMLIMIT is set, the runtime has taken that.
func limitHeap(goMemLimit string, log *slog.Logger) {
	if goMemLimit != "" {
		return
	}
	limit := heapLimit(min(bake.HostMemoryMiB()<<20, cgroup.MemoryBound()))
	debug.SetMemoryLimit(int64(limit))
	log.Debug("memory of the daemon itself is limited", "bytes", limit)
}
