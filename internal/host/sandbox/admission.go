package sandbox

import (
	"context"
	"errors"

	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// reserve reserves room for n more sandboxes of an owner. It counts a refusal for the metrics.
func (m *Manager) reserve(o owner.Owner, n int) (release func(), err error) {
	release, err = m.owners.Reserve(o.Name, o.Most, n, func() (have int) {
		for _, i := range m.List() {
			if i.Owner == o.Name && (i.State != Exited || i.Resumable) {
				have++
			}
		}
		return have
	})
	if err != nil {
		m.cfg.Observer.Refused(admit.CodeOwnSandboxes)
	}
	return release, err
}

// admit reserves places for n VMs. It counts a refusal for the metrics. If there is too little
// memory even for one VM, admit tells the pool to kill its additional VMMs, so that a later request
// finds more memory.
func (m *Manager) admit(n int, vcpus uint32) error {
	err := m.admitted.Enter(n, vcpus)
	var refused *admit.Error
	if errors.As(err, &refused) {
		m.cfg.Observer.Refused(refused.Code)
		if refused.Code == admit.CodeHostMemory && m.admitted.Check(1, vcpus) != nil {
			m.pool.Forget()
		}
	}
	return err
}

// AdmitParent reserves a place for a parent that boots from a disk-only snapshot. It is called for
// clients that may not bake. The parent counts as a sandbox of the owner in ctx, and as a VM that
// uses all of its memory. The last parameter is the size of this memory in bytes.
func (m *Manager) AdmitParent(ctx context.Context, vcpus uint32, memory uint64) (leave func(), err error) {
	release, err := m.reserve(owner.Of(ctx), 1)
	if err != nil {
		return nil, err
	}
	if err = m.admitted.RoomInMemory(memory); err == nil {
		err = m.admit(1, vcpus)
	}
	if err != nil {
		release()
		return nil, err
	}
	return func() { m.admitted.Started(1); m.admitted.Leave(vcpus); release() }, nil
}

// givePlaces assigns the reserved places to the children of a fork. It frees the places of children
// that did not start.
func (m *Manager) givePlaces(children []*Sandbox, vcpus uint32) {
	for _, s := range children {
		if s == nil {
			m.admitted.Leave(vcpus)
		} else {
			s.live.leave = m.admitted.Leaver(vcpus)
		}
	}
}

// reserveRAM reserves RAM for the memory of a branch of s. If too little RAM is free, it waits
// until earlier branches of the same owner are on disk. A waiting branch takes none of the host's
// places for branches. The wait ends when the sandbox is deleted.
func (m *Manager) reserveRAM(ctx context.Context, s *Sandbox, rec *ledger.Record, v *liveVM,
	req *BranchRequest) (func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.calls, cancel)()
	var written func() (uint64, error)
	if req.Mode != vm.BranchFull {
		written = func() (uint64, error) { return m.nextBranchBytes(ctx, s, rec, v, req.Encrypt) }
	}
	release, err := m.cfg.Store.ReserveRAM(ctx, rec.Owner, rec.MemoryBytes, written)
	return release, vmpool.Cause(v.calls, err)
}

// nextBranchBytes returns an upper bound for the memory of the next branch of s, in bytes. If
// secret is set, the branch will be encrypted.
func (m *Manager) nextBranchBytes(ctx context.Context, s *Sandbox, rec *ledger.Record, v *liveVM, secret bool) (
	uint64, error) {
	stats, err := v.vmm.Stats(ctx)
	if end, line := chain.EndLine(m.cfg.Store, rec.Rebased, rec.MemoryBytes); end || secret {
		stats.GuestDirtyBytes += line // a branch that is not based on the line also contains the line's pages
	}
	return stats.GuestDirtyBytes, s.answered(err)
}
