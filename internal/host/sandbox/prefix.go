package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/hostroute"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Reach returns a *NotFoundError if the client of a request may not see the sandbox.
func (m *Manager) Reach(ctx context.Context, id string) error {
	p := owner.PrefixOf(ctx)
	if p == "" {
		return nil
	}
	s, err := m.Get(id)
	if err == nil && !p.HasLabels(s.Info().Labels) {
		err = &NotFoundError{ID: id}
	}
	return err
}

// isWithin reports whether clients with the prefix p may see a snapshot: its tag is within p, it is
// the state of a sandbox within p, or it is a parent, which all clients may see. An incomplete
// snapshot does not count as a parent, because it is not yet known whether the snapshot will be a
// parent.
func (m *Manager) isWithin(p owner.Prefix, i store.Info) bool {
	switch {
	case p.HasTag(i.Tag):
		return true
	case i.Writing, i.Damage != "":
		return false
	case i.Branch == nil, m.cfg.IsParent != nil && m.cfg.IsParent(i.Tag):
		return i.ForAll()
	}
	s, err := m.Get(i.Branch.SandboxID)
	return i.Transient && err == nil && p.HasLabels(s.Info().Labels)
}

// MayUse returns a *store.NotFoundError if the client of a request may not see a snapshot.
func (m *Manager) MayUse(ctx context.Context, tag string) error {
	p := owner.PrefixOf(ctx)
	if p.HasTag(tag) {
		return nil
	}
	i, err := m.cfg.Store.Info(tag)
	if err == nil && !m.isWithin(p, i) {
		err = &store.NotFoundError{Tag: tag}
	}
	return err
}

// mayOpen returns an error if the requested setting opens closed networks that the present policy
// does not open, and the client may not open them. Closed networks need protection because
// forkd-net connects from the host's own network, where servers on loopback and private addresses
// trust the host. In errors, the names of fields have the given prefix.
func (m *Manager) mayOpen(ctx context.Context, prefix string, asked *netclient.Setting, present netproto.Policy) error {
	o := owner.Of(ctx)
	if asked == nil || o.Admin || m.cfg.OpenPrivate {
		return nil
	}
	if wide := asked.Policy.Widens(&present, hostroute.IsLocal); wide != nil {
		return &owner.ClosedError{Field: prefix + wide.Field, Who: o.Name, Reason: wide.Reason}
	}
	return nil
}
