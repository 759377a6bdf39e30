package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// limit applies the limits in a record to a VM. It writes only limits that are not already in
// force; a new VM has no limits before the first call.
func (v *liveVM) limit(r *ledger.Record) error { return v.vmm.Limit(r.Limits, r.MemoryBytes) }

// SetLimits replaces the limits of a sandbox in any state. When SetLimits returns, the limits are
// in force. Later branches inherit the limits. A rollback does not change them. A memory limit
// below the sandbox's usage is refused, because the kernel would kill the sandbox.
func (m *Manager) SetLimits(ctx context.Context, id string, limits vm.Limits) (Info, error) {
	if err := m.cfg.VMMs.CheckLimits("", limits); err != nil {
		return Info{}, err
	}
	return m.change(ctx, id, func(h *Held) error { return h.s.setLimits(limits) })
}

func (s *Sandbox) setLimits(limits vm.Limits) error {
	before := s.record
	if s.live != nil && s.Info().State.HasVM() {
		if err := vmpool.ChangeLimits(s.live.vmm, limits, before.MemoryBytes); err != nil {
			return s.explain("limit", s.live, err)
		}
	}
	// Write the record after the limits are in force. If the daemon is killed before it has written
	// the record, the next daemon applies the old limits, which are in the record.
	if err := s.updateAll(func(r *ledger.Record) { r.Limits = limits }); err != nil {
		if s.live != nil {
			_ = s.live.limit(&before) // ignore this error, because the first error says more
		}
		return err
	}
	return nil
}

// Usage returns the limits and the usage of a sandbox. The usage is zero if the sandbox has no VM.
func (m *Manager) Usage(id string) (vm.Limits, cgroup.Usage, error) {
	s, err := m.Get(id)
	if err != nil {
		return vm.Limits{}, cgroup.Usage{}, err
	}
	s.mu.Lock()
	limits, v, has := s.record.Limits, s.live, s.state.HasVM()
	s.mu.Unlock()
	if !has {
		return limits, cgroup.Usage{}, nil
	}
	use, err := v.vmm.Usage()
	return limits, use, err
}

// vcpus returns the number of vCPUs of the sandbox's VM, or 1 if the number is unknown.
func (s *Sandbox) vcpus() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil || s.live.lease == nil {
		return 1
	}
	return s.live.lease.Manifest().Machine.VCPUs
}
