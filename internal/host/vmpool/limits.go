package vmpool

import (
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/vm"
)

// ChangeLimits applies limits to a VM whose guest has the given memory in bytes. It returns an error
// if the VM already uses more memory than the limits permit.
func ChangeLimits(v VMM, limits vm.Limits, memory uint64) error {
	use, err := v.Usage()
	if err != nil {
		return err
	}
	if most := limits.MemoryMiB + limits.SwapMiB; limits.MemoryMiB != 0 && use.OwnBytes>>20 >= most {
		return invalid.Errorf("memory_mib", "%d: the sandbox uses %d MiB now, and would be killed", limits.MemoryMiB,
			use.OwnBytes>>20)
	}
	return v.Limit(limits, memory)
}
