package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
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
