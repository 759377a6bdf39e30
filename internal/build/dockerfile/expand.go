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

// Bounds on variables, and on what words become with them. The library that expands a word has none: a
// line of a Dockerfile could ask it for more memory than there is.
const (
	maxValue     = 32 << 10  // bytes of a variable's value
	maxVariables = 128 << 10 // bytes of the variables of a stage, with variableSize for each
	variableSize = 64        // bytes that a variable takes besides its name and value
	maxExpanded  = 8 << 20   // bytes of the values that all words use, and of what these words become

	maxSubstitutions = 64        // in a word, of the forms other than ${NAME}: they can be within each other
	maxPatterns      = 4 << 10   // bytes in a word of substitutions with a pattern, such as ${NAME//a/b}
	maxReplaced      = 256 << 10 // those bytes, multiplied by the bytes of the values that the word uses
	maxNested        = 1 << 10   // bytes of a word and of the values it uses, where a pattern has variables or quotes
)

// vars is what words of a Dockerfile are expanded with.
type vars struct {
	args map[string]string
	env  map[string]string // counts before args
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

// Put sets a variable of m, whose variables take size bytes. It refuses one that is beyond the bounds.
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

// Expander puts the values of variables into the words of one build, within the bounds of a Dockerfile.
type Expander struct {
	ctx      context.Context
	expanded int // bytes; see maxExpanded
}

// NewExpander returns an Expander for a build, which expands no more words once ctx is done.
func NewExpander(ctx context.Context) *Expander { return &Expander{ctx: ctx} }

// Expand puts the values of variables into a text as a Dockerfile's instructions have them. Those of env
// count before those of defaults. Quotes and backslashes are kept.
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
		case used.left < 0:
			return "", fmt.Errorf("%.40q: the variables have too many bytes for a pattern: "+
				"want at most %d here; have a RUN command do it", word, limit)
		case err != nil && len(err.Error()) > maxErrorText:
			return "", fmt.Errorf("%.40q: it cannot be expanded: %.*s (cut off)", word, maxErrorText, err.Error())
		}
		return text, err
	}
}

// maxErrorText bounds an error of the library, which quotes words whole, in bytes.
const maxErrorText = 1000

// bounded gives a word the values of variables until they have too many bytes.
type bounded struct {
	vars
	left  int // bytes; below 0: there were too many, and the word is not used
	bytes int // that were given
}

// Get implements shell.EnvGetter.
func (b *bounded) Get(name string) (string, bool) {
	value, ok := b.vars.Get(name)
	b.bytes += len(value)
	if b.left -= len(value); b.left < 0 {
		return "", ok
	}
	return value, ok
}

// substitution matches the beginning of a substitution: ${NAME}, one with a word, or one with a pattern
// that has nothing in it to be expanded, which is the submatch.
var substitution = regexp.MustCompile("\\$\\{[\\pL\\pN_]+(?:\\}|:?[-+?]|((?://[^/$'\"\\\\`{}]*/|/[^/$'\"\\\\`{}]+/|##?|%%?)[^$'\"\\\\`{}]*\\}))")

// limitOf returns how many bytes the values may have that a word uses. A pattern multiplies: matching takes
// as many steps as the pattern has bytes for each byte of the value, and a replacement may come as often as
// the value has bytes. Within another pattern it multiplies again, which is refused.
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
