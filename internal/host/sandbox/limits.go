package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/proto/vm"
)

// limit sets the limits of a record. A VM that was started has those of a VM without any, and what
// is as it should be is not written again.
func (v *liveVM) limit(r *ledger.Record) error { return v.vmm.Limit(r.Limits, r.MemoryBytes) }

// limitsFor returns the limits of children: what was asked for, or what their snapshot gives.
func limitsFor(asked *vm.Limits, m *snapshot.Manifest) vm.Limits {
	if asked != nil {
		return *asked
	}
	return m.Guest.Limits
}

// SetLimits replaces the limits of a sandbox in any state. When it returns they are in force.
// Branches made from here on inherit them; a rollback does not change them. Less memory than the
// sandbox uses is refused: the kernel would end it.
func (m *Manager) SetLimits(ctx context.Context, id string, limits vm.Limits) (Info, error) {
	if err := m.cfg.VMMs.CheckLimits("", limits); err != nil {
		return Info{}, err
	}
	return m.change(ctx, id, func(h *Held) error { return h.s.setLimits(limits) })
}

func (s *Sandbox) setLimits(limits vm.Limits) error {
	before := s.record
	if s.live != nil && s.Info().State.hasVM() {
		if err := s.live.change(limits, &before); err != nil {
			return s.explain("limit", s.live, err)
		}
	}
	// Written down when it is in force: a daemon that takes over sets what is written.
	if err := s.updateAll(func(r *ledger.Record) { r.Limits = limits }); err != nil {
		if s.live != nil {
			_ = s.live.limit(&before) // the first error says what matters
		}
		return err
	}
	return nil
}

// change sets other limits than r has for a VM that may have outgrown them.
func (v *liveVM) change(limits vm.Limits, r *ledger.Record) error {
	use, err := v.vmm.Usage()
	if err != nil {
		return err
	}
	if most := limits.MemoryMiB + limits.SwapMiB; limits.MemoryMiB != 0 && use.OwnBytes>>20 >= most {
		return invalid.Errorf("memory_mib", "%d: the sandbox uses %d MiB now, and would be killed", limits.MemoryMiB,
			use.OwnBytes>>20)
	}
	return v.vmm.Limit(limits, r.MemoryBytes)
}

// Usage returns the limits of a sandbox and what it uses of them; nothing, where it has no VM.
func (m *Manager) Usage(id string) (vm.Limits, cgroup.Usage, error) {
	s, err := m.Get(id)
	if err != nil {
		return vm.Limits{}, cgroup.Usage{}, err
	}
	s.mu.Lock()
	limits, v, has := s.record.Limits, s.live, s.state.hasVM()
	s.mu.Unlock()
	if !has {
		return limits, cgroup.Usage{}, nil
	}
	use, err := v.vmm.Usage()
	return limits, use, err
}

// vcpus is how many vCPUs a VM of s has; 1 where that is not known.
func (s *Sandbox) vcpus() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil || s.live.lease == nil {
		return 1
	}
	return s.live.lease.Manifest().Machine.VCPUs
}
