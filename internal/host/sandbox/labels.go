package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/owner"
)

// ChangeLabels changes labels of a sandbox in any state. A nil value in the map removes the label,
// and any other value becomes the label's value. Labels that are not in the map stay unchanged.
func (m *Manager) ChangeLabels(ctx context.Context, id string, change map[string]*string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error { return h.s.changeLabels(ctx, change) })
}

func (s *Sandbox) changeLabels(ctx context.Context, change map[string]*string) error {
	labels, err := owner.Relabel(ctx, s.Info().Labels, change)
	if err != nil {
		return err
	}
	if err := ledger.CheckLabels(labels); err != nil {
		return err
	}
	if err := s.updateAll(func(r *ledger.Record) { r.Labels = labels }); err != nil {
		return err
	}
	s.events.Emit(s.event(event.SandboxLabels, ""))
	return nil
}
