package snapshot

import (
	"fmt"
	"regexp"
)

// MaxTag is the maximum length of a tag in bytes, the same as for E2B's template names. File names
// add prefixes and suffixes to a tag, and must stay below the 255 bytes that file systems support.
const MaxTag = 128

// CheckTag returns an error unless tag is a valid snapshot tag: 1 to 128 characters of
// [A-Za-z0-9._-]. The first character must be neither a dot nor a dash. All parts of forkd use this
// rule. A valid tag is a safe file name.
func CheckTag(tag string) error {
	position := 0
	for _, c := range tag {
		position++
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_':
		case (c == '.' || c == '-') && position > 1:
		default:
			return fmt.Errorf("%.*q: character %q at position %d: want letters (a to z, A to Z), digits and '_', then also '.' and '-'",
				MaxTag, tag, c, position)
		}
	}
	if position == 0 || position > MaxTag {
		return fmt.Errorf("it has %d characters: want 1 to %d", position, MaxTag)
	}
	return nil
}

// StepPrefix begins the tags of snapshots of build steps. The prefix of an API token may precede
// it.
const StepPrefix = "step-"

var stepForm = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_-]*\.)?` + StepPrefix + `[0-9a-f]{40}$`)

// StepTag returns the tag of the snapshot of a build step. The tag contains 160 bits of the step's
// key, in hex. The parameter prefix is empty or ends with a dot.
func StepTag(prefix, key string) string { return prefix + StepPrefix + key[:40] }

// IsStepTag reports whether a tag has the form of StepTag. Only builds may create such tags,
// because builds trust the snapshots with these tags.
func IsStepTag(tag string) bool { return stepForm.MatchString(tag) }
