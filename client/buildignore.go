package client

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// ignore holds the patterns of a .dockerignore. The zero value excludes nothing.
type ignore struct {
	m *patternmatcher.PatternMatcher
}

// parseIgnore reads a .dockerignore.
func parseIgnore(text []byte) (ignore, error) {
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err != nil {
		return ignore{}, err
	}
	for _, p := range patterns {
		if err := checkPattern(p); err != nil {
			return ignore{}, fmt.Errorf("the pattern %q: %w", p, err)
		}
	}
	m, err := patternmatcher.New(patterns)
	return ignore{m}, err
}

// checkPattern returns an error for an invalid pattern. patternmatcher.New does not find every such
// pattern, because it compiles a pattern at its first use.
func checkPattern(p string) error {
	if rest := strings.TrimRight(p, `\`); (len(p)-len(rest))%2 != 0 {
		return errors.New("it ends with a backslash")
	}
	m, err := patternmatcher.New([]string{p})
	if err != nil || len(m.Patterns()) == 0 {
		return err
	}
	// Compile the pattern without its exclamation mark. A pattern with a second mark is not checked.
	if p = m.Patterns()[0].String(); strings.HasPrefix(strings.TrimSpace(p), "!") {
		return nil
	}
	if m, err = patternmatcher.New([]string{p}); err == nil && len(m.Patterns()) > 0 {
		_, err = m.MatchesOrParentMatches("x")
	}
	return err
}

// out reports whether a path of the context, with slashes, is excluded.
func (i ignore) out(name string) (bool, error) {
	if i.m == nil {
		return false, nil
	}
	return i.m.MatchesOrParentMatches(name)
}

// exceptions reports whether entries below an ignored directory may still be in the context.
func (i ignore) exceptions() bool { return i.m != nil && i.m.Exclusions() }
