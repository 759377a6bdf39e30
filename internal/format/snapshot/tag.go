package snapshot

import "fmt"

// MaxTag is the longest tag, in bytes: that of E2B's names of templates. What is put before and
// behind a tag to make a file name leaves it below the 255 bytes of file systems.
const MaxTag = 128

// CheckTag reports whether tag is a valid snapshot tag: 1 to 128 characters of [A-Za-z0-9._-], of
// which the first is not a dot or a dash. Every part of forkd that takes a tag uses this one rule;
// a tag that passes is a safe file name.
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
