package dockerfile

import (
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// Warning is a violation of a rule of BuildKit's linter.
type Warning struct {
	Line        int    `json:"line"`
	Rule        string `json:"rule"`
	Text        string `json:"text"`
	Description string `json:"description"`
	URL         string `json:"url,omitempty"`
}

// Check parses a Dockerfile and returns the warnings of BuildKit's linter about its instructions,
// sorted by line. Rules that need the base images are not checked. The error is an *Error.
func Check(name string, text []byte) ([]Warning, error) {
	var list []Warning
	config := &linter.Config{}
	if check, _, _, ok := parser.ParseDirective("check", text); ok {
		parsed, err := linter.ParseLintOptions(check)
		if err != nil {
			return nil, &Error{name, 1, err}
		}
		config = parsed
	}
	config.Warn = func(rule, description, url, message string, at []parser.Range) {
		list = append(list, Warning{lineOf(at), rule, message, description, url})
	}
	if _, err := parse(name, text, linter.New(config)); err != nil {
		return nil, err
	}
	slices.SortStableFunc(list, func(a, b Warning) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return strings.Compare(a.Rule, b.Rule)
	})
	return list, nil
}
