package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
)

// ForkSandbox branches a sandbox and forks the branch, in one call. The snapshot of the branch is
// deleted when none of the children needs it any more.
func (m *Manager) ForkSandbox(ctx context.Context, source string, mode BranchRequest,
	req ForkRequest) (ForkResult, BranchResult, error) {
	// check first, so that a wrong request makes no branch; the snapshot's tag is chosen below
	if err := req.checkChildren(); err != nil {
		return ForkResult{}, BranchResult{}, err
	}
	if _, err := owner.Of(ctx).Label(req.Labels); err != nil { // check first, so that a wrong request makes no branch
		return ForkResult{}, BranchResult{}, err
	}
	if err := m.Reach(ctx, source); err != nil {
		return ForkResult{}, BranchResult{}, err
	}
	s, err := m.Get(source)
	if err != nil {
		return ForkResult{}, BranchResult{}, err
	}
	// check first, so that a wrong request makes no branch
	if err := netclient.MayOpen(ctx, m.cfg.OpenPrivate, "network.", req.Network, s.Info().Network.Policy); err != nil {
		return ForkResult{}, BranchResult{}, err
	}
	// check first, so that no branch is made if there is no room
	if err := m.admitted.Check(req.N, s.vcpus()); err != nil {
		return ForkResult{}, BranchResult{}, err
	}
	release, err := m.reserve(owner.Of(ctx), req.N) // check first, so that no branch is made if there is no room
	if err != nil {
		return ForkResult{}, BranchResult{}, err
	}
	release()
	mode.Transient, mode.NoWait = true, false
	b, err := m.Branch(ctx, source, mode)
	if err != nil {
		return ForkResult{}, b, err
	}
	// The snapshot stays pinned until the children have their own leases.
	unpin, err := m.cfg.Store.Pin(b.Info.Tag)
	if err != nil {
		return ForkResult{}, b, err
	}
	defer unpin()
	req.Tag = b.Info.Tag
	forked, err := m.Fork(ctx, req)
	return forked, b, err
}
