package dockerfile

import (
	"bytes"
	"fmt"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// Ignore is what a .dockerignore leaves out of the build context. The zero Ignore leaves nothing out.
type Ignore struct {
	m *patternmatcher.PatternMatcher
}

// ParseIgnore reads a .dockerignore.
func ParseIgnore(text []byte) (Ignore, error) {
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err != nil {
		return Ignore{}, err
	}
	m, err := patternmatcher.New(patterns)
	if err != nil {
		return Ignore{}, fmt.Errorf("a pattern: %w", err)
	}
	return Ignore{m}, nil
}

// NewIgnore returns what leaves out what matches patterns of a .dockerignore.
func NewIgnore(patterns []string) (Ignore, error) {
	if len(patterns) == 0 {
		return Ignore{}, nil
	}
	m, err := patternmatcher.New(patterns)
	return Ignore{m}, err
}

// Any reports whether anything may be left out.
func (i Ignore) Any() bool { return i.m != nil }

// Out reports whether a path of the context, with slashes, is left out.
func (i Ignore) Out(name string) (bool, error) {
	if i.m == nil {
		return false, nil
	}
	return i.m.MatchesOrParentMatches(name)
}

// Exceptions reports whether something below a directory that is left out may be in the context all the
// same.
func (i Ignore) Exceptions() bool { return i.m != nil && i.m.Exclusions() }
