package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/unique"
)

// SetStrict sets how later rollbacks and resumptions of a sandbox react if the agent finds programs
// that repeat random numbers.
func (m *Manager) SetStrict(ctx context.Context, id string, strict unique.Strict) error {
	if err := strict.Check(); err != nil || strict == unique.AsBefore {
		return err
	}
	return m.With(ctx, id, func(h *Held) error {
		return h.s.updateAll(func(r *ledger.Record) { r.Strict = strict.Or(r.Strict) })
	})
}
