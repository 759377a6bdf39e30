package sandbox

import (
	"context"
	"maps"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
)

// Bounds on labels, which are in every list and in a record that is written often.
const (
	MaxLabels     = 64
	maxLabelValue = 256     // bytes
	maxLabelBytes = 4 << 10 // names and values together
)

// labelName has the characters that need no quoting in a URL, a shell or a file.
var labelName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$`)

// checkLabels checks the labels of a request.
func checkLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return invalid.Errorf("labels", "%d labels: want at most %d", len(labels), MaxLabels)
	}
	total := 0
	for name, value := range labels {
		total += len(name) + len(value)
		if !labelName.MatchString(name) {
			return invalid.Errorf("labels",
				"name %.70q: want 1 to 63 letters, digits and characters of ._/-, the first a letter or digit", name)
		}
		if len(value) > maxLabelValue || !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
			return invalid.Errorf("labels", "value of %q: want at most %d bytes of text without control characters", name,
				maxLabelValue)
		}
	}
	if total > maxLabelBytes {
		return invalid.Errorf("labels", "%d bytes of names and values: want at most %d", total, maxLabelBytes)
	}
	return nil
}

// ChangeLabels sets labels of a sandbox in any state, and takes those away whose value is nil. The
// others stay.
func (m *Manager) ChangeLabels(ctx context.Context, id string, change map[string]*string) (Info, error) {
	return m.change(ctx, id, func(h *Held) error { return h.s.changeLabels(ctx, change) })
}

func (s *Sandbox) changeLabels(ctx context.Context, change map[string]*string) error {
	labels := maps.Clone(s.Info().Labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	p := PrefixOf(ctx)
	for name, value := range change {
		if err := Within(ctx, strings.HasPrefix(name, string(p)), "labels: %.70q", name); err != nil {
			return err
		}
		if value == nil {
			delete(labels, name)
		} else {
			labels[name] = *value
		}
	}
	if err := checkLabels(labels); err != nil {
		return err
	}
	if err := Within(ctx, p.HasLabels(labels),
		"labels: without one of these the sandbox would be out of reach"); err != nil {
		return err
	}
	if err := s.updateAll(func(r *ledger.Record) { r.Labels = labels }); err != nil {
		return err
	}
	s.events.Emit(s.event(event.SandboxLabels, ""))
	return nil
}
