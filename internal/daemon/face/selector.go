package face

import (
	"strings"

	"github.com/forkd/forkd/internal/host/invalid"
)

// maxSelectors is the maximum number of labels in a Selector.
const maxSelectors = 64

// Selector is a set of required labels. An element is NAME=VALUE, or NAME for a label with any
// value.
type Selector []string

// Check reports an error in a selector. In the error, the selector is called by the given name.
func (s Selector) Check(field string) error {
	if len(s) > maxSelectors {
		return invalid.Errorf(field, "%d of them: want at most %d", len(s), maxSelectors)
	}
	for _, want := range s {
		if name, _, _ := strings.Cut(want, "="); name == "" {
			return invalid.Errorf(field, "%.100q: want NAME=VALUE or NAME", want)
		}
	}
	return nil
}

// Match reports whether labels contain every label of s.
func (s Selector) Match(labels map[string]string) bool {
	for _, want := range s {
		name, value, exact := strings.Cut(want, "=")
		if has, ok := labels[name]; !ok || exact && has != value {
			return false
		}
	}
	return true
}
