package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
)

// reserve takes room for n more sandboxes of an owner, and counts what it refuses.
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

// admit takes places for n VMs, and counts what it refuses. Where memory is short for one more, VMs
// that wait for forks have to go before sandboxes of users have to.
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

// givePlaces gives each child of a fork its place, and gives back those of children that did not
// start.
func (m *Manager) givePlaces(children []*Sandbox, vcpus uint32) {
	for _, s := range children {
		if s == nil {
			m.admitted.Leave(vcpus)
		} else {
			s.live.leave = m.admitted.Leaver(vcpus)
		}
	}
}

// enterBranches takes one of the host's places for branches, for the owner that ctx names, or returns
// a *BusyError. The caller holds the lock of the sandbox: what only waits for that takes no place.
func (m *Manager) enterBranches(ctx context.Context) (leave func(), err error) {
	_, total := m.branches.Count()
	leave, err = m.branches.Enter(owner.FairShare(owner.Of(ctx).Name, total))
	if full := (*gate.FullError)(nil); errors.As(err, &full) {
		return nil, &BusyError{What: "branches", Limit: full.Limit, Owner: full.Key}
	}
	return leave, err
}

// branchTag returns the tag of a branch: a checked one, or one that is chosen where it is empty.
func branchTag(ctx context.Context, tag, id string, at time.Time) (string, error) {
	p := owner.PrefixOf(ctx)
	switch {
	case tag != "":
	case p != "":
		tag = p.Tags() + snapshot.NewID()[:16]
	default:
		tag = fmt.Sprintf("branch-%s-%d-%s", id, at.Unix(), snapshot.NewID()[:4])
	}
	if err := snapshot.CheckTag(tag); err != nil {
		return "", &invalid.Error{Field: "tag", Reason: err.Error()}
	}
	return tag, owner.Within(ctx, p.HasTag(tag), "tag: %q", tag)
}

// takePlace waits for a place of the host for the client that ctx names, or else for the owner of the
// sandbox.
func takePlace(ctx context.Context, g *gate.Gate, sandboxOwner string) (release func(), err error) {
	return g.Wait(ctx, placeShare(ctx, g, sandboxOwner))
}

// placeShare is the share of the client, or owner, that takePlace is for. One place is for others: VMs
// that do not answer, however many a client has, hold the rest.
func placeShare(ctx context.Context, g *gate.Gate, sandboxOwner string) gate.Share {
	_, total := g.Count()
	return owner.Share(cmp.Or(owner.Of(ctx).Name, sandboxOwner), total-1)
}
