package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/proto/vm"
)

// limit applies the limits of a record. A newly started VM has no limits, and limits that are in
// force already are not written again.
func (v *liveVM) limit(r *ledger.Record) error { return v.vmm.Limit(r.Limits, r.MemoryBytes) }

// limitsFor returns the limits of children: those of the request or, without any, those of their
// snapshot.
func limitsFor(asked *vm.Limits, m *snapshot.Manifest) vm.Limits {
	if asked != nil {
		return *asked
	}
	return m.Guest.Limits
}

// SetLimits replaces the limits of a sandbox in any state. They are in force when it returns. Later
// branches inherit them; a rollback does not change them. A limit below the memory that the sandbox
// uses is refused, because the kernel would kill it.
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
	// The record is written after the limits are in force. A daemon that takes over applies the limits
	// in the record.
	if err := s.updateAll(func(r *ledger.Record) { r.Limits = limits }); err != nil {
		if s.live != nil {
			_ = s.live.limit(&before) // the first error is the one that matters
		}
		return err
	}
	return nil
}

// change applies limits that differ from r's, to a VM that may already exceed them.
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

// Usage returns the limits of a sandbox and its usage, zero if it has no VM.
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

// vcpus returns the number of vCPUs of s's VM, 1 if the number is unknown.
func (s *Sandbox) vcpus() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil || s.live.lease == nil {
		return 1
	}
	return s.live.lease.Manifest().Machine.VCPUs
}
