package dockerfile

import "github.com/moby/patternmatcher"

// Ignore excludes files by patterns in the form of a .dockerignore, such as those of --exclude. The
// zero Ignore excludes nothing.
type Ignore struct {
	m *patternmatcher.PatternMatcher
}

// NewIgnore returns an Ignore that excludes the files that match patterns.
func NewIgnore(patterns []string) (Ignore, error) {
	if len(patterns) == 0 {
		return Ignore{}, nil
	}
	m, err := patternmatcher.New(patterns)
	return Ignore{m}, err
}

// Any reports whether there are any patterns.
func (i Ignore) Any() bool { return i.m != nil }

// Out reports whether a path of the context, with slashes, is excluded.
func (i Ignore) Out(name string) (bool, error) {
	if i.m == nil {
		return false, nil
	}
	return i.m.MatchesOrParentMatches(name)
}
