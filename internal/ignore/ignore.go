// Package ignore finds the paths that the patterns of a .dockerignore match.
//
// The rules are those of Docker's github.com/moby/patternmatcher, which makes a regular expression
// of each pattern. A pattern applies to a path if it matches the path or one of the path's parents.
// Docker's code tries the path and its parents one after another. Package ignore reads the path
// only once per pattern, however many parents the path has.
//
// The package reads no files, and does not split the text of a .dockerignore into patterns.
package ignore

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"regexp/syntax"
	"strings"
)

// maxSize bounds a pattern, in instructions of its regular expression. A repetition such as a{1000}
// multiplies the instructions.
const maxSize = 1 << 16

// Patterns are the patterns of a .dockerignore. The zero value excludes nothing.
type Patterns struct {
	list       []pattern
	exceptions bool
	size       int
}

type pattern struct {
	exception bool
	matches   func(path string) bool // reports whether the pattern matches the path or one of its parents
}

// New returns patterns in the order in which they apply: the last pattern that matches a path
// decides. A pattern that begins with an exclamation mark is an exception.
func New(patterns []string) (Patterns, error) {
	var all Patterns
	for _, p := range patterns {
		if p = strings.TrimSpace(p); p == "" {
			continue
		}
		one, size, err := compile(path.Clean(p))
		if err != nil {
			return Patterns{}, fmt.Errorf("the pattern %.200q: %w", p, err)
		}
		all.list = append(all.list, one)
		all.exceptions = all.exceptions || one.exception
		all.size += size
	}
	return all, nil
}

// Any reports whether there are any patterns.
func (p Patterns) Any() bool { return len(p.list) > 0 }

// Exceptions reports whether a path below an excluded directory may be included.
func (p Patterns) Exceptions() bool { return p.exceptions }

// Size returns the approximate number of steps that all patterns take for one character of a path.
func (p Patterns) Size() int { return p.size }

// Out reports whether a clean relative path, with slashes, is excluded.
func (p Patterns) Out(path string) bool {
	out := false
	for i := range p.list {
		if p.list[i].exception == out && p.list[i].matches(path) {
			out = !out
		}
	}
	return out
}

func compile(text string) (p pattern, size int, err error) {
	text, p.exception = strings.CutPrefix(text, "!")
	if text == "" {
		return p, 0, errors.New("it is an exclamation mark and nothing else")
	}
	if _, err := path.Match(text, "."); err != nil {
		return p, 0, err
	}
	kind, source, err := translate(text)
	if err != nil {
		return p, 0, err
	}
	switch kind {
	case exact:
		p.matches = func(path string) bool {
			rest, ok := strings.CutPrefix(path, text)
			return ok && (rest == "" || rest[0] == '/')
		}
	case prefix:
		start := strings.TrimSuffix(text, "**")
		p.matches = func(path string) bool { return strings.HasPrefix(path, start) }
	case suffix:
		end := strings.TrimPrefix(text, "**") + "/"
		p.matches = func(path string) bool { return strings.Contains("/"+path+"/", end) }
	case expression:
		return compileExpression(p, source)
	}
	return p, len(text), nil
}

func compileExpression(p pattern, source string) (pattern, int, error) {
	parsed, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return p, 0, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return p, 0, err
	}
	if len(program.Inst) > maxSize {
		return p, 0, errors.New("it repeats too much")
	}
	re, err := regexp.Compile(source)
	if err != nil {
		return p, 0, err
	}
	p.matches = re.MatchString
	return p, len(program.Inst), nil
}

// kind says how a pattern is compared with a path.
type kind int

const (
	exact      kind = iota // no wildcards
	prefix                 // two stars at the end, and no other wildcards
	suffix                 // two stars at the beginning, and no other wildcards
	expression             // any other pattern, which needs a regular expression
)

// translate returns the kind of a pattern and its regular expression, which matches a path if the
// pattern matches the path or one of its parents.
func translate(text string) (kind, string, error) {
	const (
		special = ".+()$"           // characters that are special in regular expressions, but not in patterns
		letters = "afnrtvdDsSwWbBA" // letters whose escapes mean the same for a parent as for the path
	)
	k, runes := exact, []rune(text)
	var out strings.Builder
	out.WriteByte('^')
	for i := 0; i < len(runes); i++ {
		first := i == 0
		switch c := runes[i]; {
		case c == '*' && i+1 < len(runes) && runes[i+1] == '*':
			if i++; i+1 < len(runes) && runes[i+1] == '/' {
				i++
			}
			switch {
			case i+1 < len(runes):
				out.WriteString("(.*/)?")
				k = expression
			case k == exact:
				k = prefix
			default:
				out.WriteString(".*")
				k = expression
			}
			if first {
				k = suffix
			}
		case c == '*':
			out.WriteString("[^/]*")
			k = expression
		case c == '?':
			out.WriteString("[^/]")
			k = expression
		case c == '\\':
			if i++; i == len(runes) {
				return k, "", errors.New("it ends with a backslash")
			}
			if isLetter(runes[i]) && !strings.ContainsRune(letters, runes[i]) {
				return k, "", fmt.Errorf(`\%c: a backslash has no meaning there`, runes[i])
			}
			out.WriteRune('\\')
			out.WriteRune(runes[i])
			k = expression
		case c == '[' || c == ']':
			out.WriteRune(c)
			k = expression
		case strings.ContainsRune(special, c):
			out.WriteRune('\\')
			out.WriteRune(c)
		default:
			out.WriteRune(c)
		}
	}
	// A match ends at the end of the path, or before a slash, where a parent ends. An assertion
	// such as \b gives the same result in both places, because neither the slash nor the end of the
	// text is part of a word.
	out.WriteString("(?:/|$)")
	return k, out.String(), nil
}

func isLetter(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
