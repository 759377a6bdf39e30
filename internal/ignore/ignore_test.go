package ignore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/moby/patternmatcher"
)

// Each pattern is compared with a path once, however deep the path is.
func TestParentsCostNothing(t *testing.T) {
	var patterns []string
	for i := range 100 {
		patterns = append(patterns, fmt.Sprintf("name%d", i), fmt.Sprintf("x/*%d", i), fmt.Sprintf("**/y%d", i),
			fmt.Sprintf("z%d/**", i), fmt.Sprintf("**/q/**/%d", i))
	}
	p, err := New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	compared, bytes := 0, 0
	for i := range p.list {
		matches := p.list[i].matches
		p.list[i].matches = func(path string) bool {
			compared++
			bytes += len(path)
			return matches(path)
		}
	}
	deep := strings.TrimSuffix(strings.Repeat("d/", 2000), "/")
	if p.Out(deep) {
		t.Error("it is excluded")
	}
	if compared != len(patterns) || bytes != len(patterns)*len(deep) {
		t.Errorf("%d patterns were compared %d times, with %d bytes of a path of %d", len(patterns), compared, bytes,
			len(deep))
	}
	// Size counts all steps, because a pattern is not compared with each parent separately.
	if p.Size() > 50*len(patterns) {
		t.Errorf("%d patterns take %d steps for a character", len(patterns), p.Size())
	}
}

// Docker's own code gives the same results.
func TestSameAsDocker(t *testing.T) {
	parts := []string{"a", "b", "ab", "*", "**", "?", "/", "/", "/", "!", ".", "[ab]", "[^a]", "\\*", "\\b", "\\B", "\\w",
		"{2}", "{0,1}", "|", "^", "$", "é", "+", "(", ")"}
	names := []string{"a", "b", "ab", "aab", "é", ".", "a.b", "*", "(a)", "a|b", "a{2}", "aa", "a$", "ba"}
	random := rand.New(rand.NewPCG(1, 2))
	some := func(of []string, between string) string {
		var out []string
		for range 1 + random.IntN(6) {
			out = append(out, of[random.IntN(len(of))])
		}
		return strings.Join(out, between)
	}
	compared := 0
	for range 20000 {
		var patterns []string
		for range 1 + random.IntN(4) {
			patterns = append(patterns, some(parts, ""))
		}
		theirs, err := patternmatcher.New(patterns)
		if err != nil {
			continue
		}
		ours, err := New(patterns)
		if err != nil {
			continue // Docker finds this error at the first use of the pattern
		}
		for range 5 {
			name := strings.ReplaceAll(some(names, "/"), "./", "")
			want, err := theirs.MatchesOrParentMatches(name)
			if err != nil {
				t.Fatalf("%q: %v", patterns, err)
			}
			compared++
			if got := ours.Out(name); got != want {
				t.Fatalf("%q: %q is out: %v, Docker says %v", patterns, name, got, want)
			}
		}
	}
	if compared < 20000 {
		t.Errorf("only %d comparisons", compared)
	}
}

func TestInvalidPatternsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"!": "exclamation mark", "[a": "syntax error", `a\`: "", `a\z*`: `\z: a backslash`, `\Qa*`: `\Q: a backslash`,
		"a{1001}*": "invalid repeat count", "*" + strings.Repeat("a{1000}", 70): "repeats too much",
		"|{2}*": "missing argument",
	} {
		_, err := New([]string{"x", text})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "the pattern ") {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

func TestNoPatternsExcludeNothing(t *testing.T) {
	p, err := New([]string{"", "  "})
	if err != nil || p.Any() || p.Exceptions() || p.Out("a") || (Patterns{}).Out("a") {
		t.Errorf("%+v, %v", p, err)
	}
}
