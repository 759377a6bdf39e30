package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// SetStrict changes what becomes of a sandbox in rollbacks and resumes from now on.
func (m *Manager) SetStrict(ctx context.Context, id string, strict unique.Strict) error {
	if err := strict.Check(); err != nil || strict == unique.AsBefore {
		return err
	}
	return m.With(ctx, id, func(h *Held) error {
		return h.s.updateAll(func(r *ledger.Record) { r.Strict = strict.Or(r.Strict) })
	})
}

// admitUnique takes what an agent has found into the record, and reports whether the sandbox may be
// handed out.
func admitUnique(r *ledger.Record, found *agentproto.Unique) error {
	r.Unique = found
	return unique.Admit(r.ID, r.Strict, found)
}
