package v1

import (
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/cgroup"
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

func usageOf(u cgroup.Usage) apiv1.Usage {
	return apiv1.Usage{MemoryBytes: u.MemoryBytes, OwnMemoryBytes: u.OwnBytes, SwapBytes: u.SwapBytes,
		CPUSeconds: u.CPU.Seconds(), ThrottledSeconds: u.Throttled.Seconds(), ThrottledPeriods: u.ThrottledRuns,
		Threads: u.Threads, ReadBytes: u.ReadBytes, WrittenBytes: u.WrittenBytes}
}

func (a *api) getLimits(r *http.Request) (out apiv1.SandboxLimits, err error) {
	limits, use, err := a.view(r).Usage(r.PathValue("id"))
	if err != nil {
		return out, err
	}
	return apiv1.SandboxLimits{Limits: apiv1.Limits(limits), Usage: usageOf(use)}, nil
}

func (a *api) setLimits(r *http.Request, req *apiv1.Limits) (out apiv1.SandboxLimits, err error) {
	if _, err := a.view(r).SetLimits(r.Context(), r.PathValue("id"), vm.Limits(*req)); err != nil {
		return out, err
	}
	return a.getLimits(r)
}
