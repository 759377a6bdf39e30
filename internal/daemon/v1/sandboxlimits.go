package v1

import (
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/history"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/vm"
)

// limitsOf returns the limits in a request, or nil if the request has none. The parameter memoryMiB
// is the value of memory_limit_mib, a field of forkd 0.5.
func limitsOf(l *apiv1.Limits, memoryMiB uint64) (*vm.Limits, error) {
	if l == nil && memoryMiB == 0 {
		return nil, nil
	}
	var limits vm.Limits
	if l != nil {
		limits = vm.Limits(*l)
	}
	if memoryMiB != 0 {
		if limits.MemoryMiB != 0 && limits.MemoryMiB != memoryMiB {
			return nil, invalid.Errorf("memory_limit_mib", "%d: limits.memory_mib is %d; give one of them", memoryMiB,
				limits.MemoryMiB)
		}
		limits.MemoryMiB = memoryMiB
	}
	return &limits, nil
}

// latestSample is the maximum age of the sample from which Usage.CPUs comes.
const latestSample = 10 * time.Second

func (a *api) usageOf(id string, u cgroup.Usage) apiv1.Usage {
	var cpus *float64
	recent := a.History.OfSandbox(id, history.Range{From: time.Now().Add(-latestSample)})
	if n := len(recent); n > 0 {
		now := rounded(recent[n-1].Figures.CPU)
		cpus = &now
	}
	return apiv1.Usage{CPUs: cpus, MemoryBytes: u.MemoryBytes, OwnMemoryBytes: u.OwnBytes, SwapBytes: u.SwapBytes,
		CPUSeconds: u.CPU.Seconds(), ThrottledSeconds: u.Throttled.Seconds(), ThrottledPeriods: u.ThrottledRuns,
		Threads: u.Threads, ReadBytes: u.ReadBytes, WrittenBytes: u.WrittenBytes}
}

func (a *api) getLimits(r *http.Request) (out apiv1.SandboxLimits, err error) {
	limits, use, err := a.view(r).Usage(r.PathValue("id"))
	if err != nil {
		return out, err
	}
	return apiv1.SandboxLimits{Limits: apiv1.Limits(limits), Usage: a.usageOf(r.PathValue("id"), use)}, nil
}

func (a *api) setLimits(r *http.Request, req *apiv1.Limits) (out apiv1.SandboxLimits, err error) {
	if _, err := a.view(r).SetLimits(r.Context(), r.PathValue("id"), vm.Limits(*req)); err != nil {
		return out, err
	}
	return a.getLimits(r)
}
