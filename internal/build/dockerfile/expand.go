package dockerfile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// Bounds on variables and on expanded words. The library that expands words has no bounds, so a
// single line of a Dockerfile could use up the memory.
const (
	maxValue     = 32 << 10  // bytes of a variable's value
	maxVariables = 128 << 10 // bytes of the variables of a stage, plus variableSize for each variable
	variableSize = 64        // bytes that a variable takes in addition to its name and value
	maxExpanded  = 8 << 20   // bytes of all values that words use, and of the expanded words

	maxSubstitutions = 64      // substitutions in a word, except ${NAME}; substitutions can be nested
	maxPatterns      = 4 << 10 // bytes of the substitutions in a word that have a pattern, such as ${NAME//a/b}
	// Bytes of the patterns in a word, multiplied by the bytes of the values that the word uses.
	maxReplaced = 256 << 10
	maxNested   = 1 << 10 // bytes of a word and of its values, if a pattern contains variables or quotes
)

// vars holds the variables that the words of a Dockerfile may use.
type vars struct {
	args map[string]string
	env  map[string]string // takes precedence over args
}

// Get implements shell.EnvGetter.
func (v vars) Get(name string) (string, bool) {
	if value, ok := v.env[name]; ok {
		return value, true
	}
	value, ok := v.args[name]
	return value, ok
}

// Keys implements shell.EnvGetter.
func (v vars) Keys() []string {
	return slices.Concat(slices.Collect(maps.Keys(v.env)), slices.Collect(maps.Keys(v.args)))
}

// Put sets a variable of m and counts its bytes in *size. It returns an error if the bounds are
// exceeded.
func Put(m map[string]string, size *int, name, value string) error {
	if len(value) > maxValue {
		return fmt.Errorf("%.40s: the value has %d bytes: want at most %d", name, len(value), maxValue)
	}
	if old, ok := m[name]; ok {
		*size -= len(name) + len(old) + variableSize
	}
	if *size += len(name) + len(value) + variableSize; *size > maxVariables {
		return fmt.Errorf("%.40s: the variables take more than %d bytes", name, maxVariables)
	}
	m[name] = value
	return nil
}

// Expander expands the variables in the words of one build, within the bounds of a Dockerfile.
type Expander struct {
	ctx      context.Context
	expanded int // bytes so far; see maxExpanded
}

// NewExpander returns an Expander that stops with an error once ctx is done.
func NewExpander(ctx context.Context) *Expander { return &Expander{ctx: ctx} }

// Expand replaces the variables in text with their values, in the manner of Dockerfile
// instructions. Variables in env take precedence over variables in defaults. Quotes and backslashes
// are kept.
func (e *Expander) Expand(text string, env, defaults map[string]string) (string, error) {
	lex := shell.NewLex('\\')
	lex.SkipProcessQuotes, lex.RawEscapes = true, true
	return e.expanding(lex, vars{env: env, args: defaults})(text)
}

func (r *reader) expander(v vars) instructions.SingleWordExpander {
	return r.words.expanding(shell.NewLex(r.source.escape), v)
}

func (e *Expander) expanding(lex *shell.Lex, v vars) instructions.SingleWordExpander {
	return func(word string) (string, error) {
		if err := e.ctx.Err(); err != nil {
			return "", err
		}
		if !isText([]byte(word)) {
			return "", fmt.Errorf("%.40q: want text in UTF-8", word)
		}
		if !strings.Contains(word, "$") {
			text, _, err := lex.ProcessWord(word, v)
			return text, err
		}
		limit, err := limitOf(word)
		if err != nil {
			return "", fmt.Errorf("%.40q: %w", word, err)
		}
		used := &bounded{vars: v, left: min(limit, maxExpanded-e.expanded)}
		text, _, err := lex.ProcessWord(word, used)
		e.expanded += used.bytes + len(text)
		switch {
		case e.expanded > maxExpanded:
			return "", fmt.Errorf("%.40q: the words of the build become more than %d MiB in all", word, maxExpanded>>20)
		case used.bad != "":
			return "", fmt.Errorf("%.40q: the value of the variable %.40q is not text in UTF-8", word, used.bad)
		case used.left < 0:
			return "", fmt.Errorf("%.40q: the variables have too many bytes for a pattern: "+
				"want at most %d here; have a RUN command do it", word, limit)
		case err != nil && len(err.Error()) > maxErrorText:
			return "", fmt.Errorf("%.40q: it cannot be expanded: %.*s (cut off)", word, maxErrorText, err.Error())
		}
		return text, err
	}
}

// maxErrorText is the maximum length of an error text of the library, in bytes. The library quotes
// words of the Dockerfile of any length.
const maxErrorText = 1000

// bounded provides the values of variables until their total length exceeds a limit.
type bounded struct {
	vars
	left  int // bytes that may still be provided; negative: the limit was exceeded, and the result must be discarded
	bytes int // bytes provided so far

	bad string // name of a variable whose value is not text; if it is set, the result must be discarded
}

// Get implements shell.EnvGetter.
func (b *bounded) Get(name string) (string, bool) {
	value, ok := b.vars.Get(name)
	b.bytes += len(value)
	if b.left -= len(value); b.left < 0 {
		return "", ok
	}
	if !isText([]byte(value)) {
		b.bad = name
		return "", ok
	}
	return value, ok
}

// substitution matches the beginning of a substitution. The substitution may have the form ${NAME},
// or have a word or a pattern after the name. The submatch is a pattern without variables and
// quotes.
var substitution = regexp.MustCompile("\\$\\{[\\pL\\pN_]+(?:\\}|:?[-+?]|((?://[^/$'\"\\\\`{}]*/|/[^/$'\"\\\\`{}]+/|##?|%%?)[^$'\"\\\\`{}]*\\}))")

// limitOf returns the maximum total size, in bytes, of the values that the given word uses. A
// pattern makes each of these bytes more expensive. For each byte of a value, matching takes as
// many steps as the pattern has bytes, and a replacement may be inserted. A pattern within another
// pattern would multiply the cost again, so such a pattern is an error.
func limitOf(word string) (int, error) {
	all, plain, words, patterns, bytes := strings.Count(word, "${"), 0, 0, 0, 0
	for _, at := range substitution.FindAllStringSubmatchIndex(word, -1) {
		switch {
		case at[2] >= 0:
			patterns++
			bytes += at[3] - at[2]
		case word[at[1]-1] == '}':
			plain++
		default:
			words++
		}
	}
	nested := all - plain - words - patterns
	switch {
	case all-plain > maxSubstitutions:
		return 0, fmt.Errorf("it has %d substitutions such as ${NAME:-WORD}: want at most %d", all-plain, maxSubstitutions)
	case bytes > maxPatterns:
		return 0, fmt.Errorf("its patterns have %d bytes: want at most %d", bytes, maxPatterns)
	case nested > 1 || nested == 1 && patterns > 0:
		return 0, errors.New("it has several substitutions with a pattern, and variables, quotes or escapes within one: " +
			"want an ARG for each")
	case nested == 1 && len(word) > maxNested:
		return 0, fmt.Errorf("it has %d bytes, and a pattern with variables, quotes or escapes: want at most %d", len(word), maxNested)
	case nested == 1:
		return maxNested - len(word), nil
	case patterns > 0:
		return maxReplaced / bytes, nil
	}
	return maxExpanded, nil
}
