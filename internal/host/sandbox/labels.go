package sandbox

import (
	"context"
	"maps"
	"strings"

	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/owner"
)

// ChangeLabels changes labels of a sandbox in any state. It sets each label in the given map to the
// value in the map, and removes the label if this value is nil. Other labels stay.
func (m *Manager) ChangeLabels(ctx context.Context, id string, change map[string]*string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error { return h.s.changeLabels(ctx, change) })
}

func (s *Sandbox) changeLabels(ctx context.Context, change map[string]*string) error {
	labels := maps.Clone(s.Info().Labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	p := owner.PrefixOf(ctx)
	for name, value := range change {
		if err := owner.Within(ctx, strings.HasPrefix(name, string(p)), "labels: %.70q", name); err != nil {
			return err
		}
		if value == nil {
			delete(labels, name)
		} else {
			labels[name] = *value
		}
	}
	if err := ledger.CheckLabels(labels); err != nil {
		return err
	}
	if err := owner.Within(ctx, p.HasLabels(labels),
		"labels: without one of these the sandbox would be out of reach"); err != nil {
		return err
	}
	if err := s.updateAll(func(r *ledger.Record) { r.Labels = labels }); err != nil {
		return err
	}
	s.events.Emit(s.event(event.SandboxLabels, ""))
	return nil
}
