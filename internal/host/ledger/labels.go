package ledger

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/forkd/forkd/internal/host/invalid"
)

// Bounds on labels. Labels must be small, because they are in every list of sandboxes, and in a
// record that is written often.
const (
	MaxLabels     = 64
	maxLabelValue = 256     // maximum number of bytes of one value
	maxLabelBytes = 4 << 10 // maximum number of bytes of all names and values together
)

// labelName permits only characters that need no quoting in a URL, a shell or a file name.
var labelName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$`)

// CheckLabels checks the labels of a request.
func CheckLabels(labels map[string]string) error {
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
