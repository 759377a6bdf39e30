package mcp

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// The excerpt of an output is the same however the output is divided into writes. It never exceeds
// the limit.
func TestExcerpt(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		head, tail := r.IntN(20), r.IntN(20)
		text := strings.Repeat("aé€😀\n", 1+r.IntN(6))
		text = text[:utf8Start(text, r.IntN(len(text)))]
		e := newExcerpt(head, tail)
		for rest := []byte(text); len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			if k, err := e.Write(rest[:n]); k != n || err != nil {
				t.Fatal(k, err)
			}
			rest = rest[n:]
		}
		got := e.text()
		if !utf8.ValidString(got) || strings.Contains(got, "\uFFFD") || e.binary() {
			t.Fatalf("%d and %d of %q: %q", head, tail, text, got)
		}
		if len(text) <= head+tail {
			if got != text || e.omitted() != 0 {
				t.Fatalf("%d and %d of %q: %q", head, tail, text, got)
			}
			continue
		}
		if e.omitted() != int64(len(text)-head-tail) || len(e.head) != head || len(e.tail) != tail ||
			!bytes.Equal(e.head, []byte(text[:head])) || !bytes.Equal(e.tail, []byte(text[len(text)-tail:])) {
			t.Fatalf("%d and %d of %q: %q and %q", head, tail, text, e.head, e.tail)
		}
	}
	e := newExcerpt(1, 1)
	e.total = maxStreamed
	if _, err := e.Write([]byte("x")); err == nil {
		t.Error("endless output is taken")
	}
}

// utf8Start moves an index to the beginning of a character.
func utf8Start(text string, i int) int {
	for i > 0 && !utf8.RuneStart(text[i]) {
		i--
	}
	return i
}

func TestURIs(t *testing.T) {
	for uri, want := range map[string]address{
		"forkd://snapshots":                       {kind: allSnapshots},
		"forkd://sandboxes":                       {kind: allSandboxes},
		"forkd://snapshots/a.b":                   {kind: oneSnapshot, name: "a.b"},
		"forkd://snapshots/console":               {kind: oneSnapshot, name: "console"},
		"forkd://sandboxes/sb-1":                  {kind: oneSandbox, name: "sb-1"},
		"forkd://sandboxes/sb-1/console":          {kind: oneConsole, name: "sb-1"},
		"forkd://sandboxes/sb-1/files/etc/passwd": {oneFile, "sb-1", "/etc/passwd"},
		"forkd://sandboxes/sb-1/files/a%20b/%2F":  {oneFile, "sb-1", "/a b//"},
		"forkd://sandboxes/sb-1/files/x/console":  {oneFile, "sb-1", "/x/console"},
	} {
		if got, ok := parseURI(uri); !ok || got != want {
			t.Errorf("%s: %+v, %v; want %+v", uri, got, ok, want)
		}
	}
	for _, uri := range []string{"", "forkd://", "forkd://snapshots/", "forkd://sandboxes/",
		"forkd://sandboxes//console", "forkd://sandboxes/a/b",
		"forkd://sandboxes/a%2Fb", "forkd://sandboxes/%zz", "forkd://workspaces", "file:///etc/passwd",
		"forkd://sandboxes/sb-1/files/%zz"} {
		if got, ok := parseURI(uri); ok {
			t.Errorf("%s: %+v", uri, got)
		}
	}
	for _, name := range []string{"a", "a b", "é", "a%b"} {
		if a, ok := parseURI(snapshotURI(name)); !ok || a.name != name {
			t.Errorf("%q: %+v, %v", name, a, ok)
		}
	}
}

func TestWinner(t *testing.T) {
	ran := func(n, code int, ms int64, score float64) attempt {
		a := attempt{N: n, ExitCode: &code, DurationMS: ms}
		if score >= 0 {
			a.Score = &score
		}
		return a
	}
	for name, test := range map[string]struct {
		all  []attempt
		keep string
		want int
	}{
		"a higher score beats a lower":   {[]attempt{ran(1, 0, 1, 3), ran(2, 0, 9, 4)}, "best", 2},
		"a score beats none":             {[]attempt{ran(1, 0, 1, -1), ran(2, 0, 9, 0)}, "best", 2},
		"equal scores: the faster":       {[]attempt{ran(1, 0, 9, 3), ran(2, 0, 1, 3)}, "best", 2},
		"a failure never wins":           {[]attempt{ran(1, 1, 1, 9), ran(2, 0, 9, -1)}, "best", 2},
		"the first ignores scores":       {[]attempt{ran(1, 0, 9, 9), ran(2, 0, 1, 1)}, "first", 2},
		"all equal: the lowest number":   {[]attempt{ran(1, 0, 1, -1), ran(2, 0, 1, -1)}, "best", 1},
		"none succeeded":                 {[]attempt{ran(1, 1, 1, -1), {N: 2}}, "best", 0},
		"none wanted":                    {[]attempt{ran(1, 0, 1, -1)}, "none", 0},
		"one that did not end by itself": {[]attempt{{N: 1}, ran(2, 0, 99, -1)}, "first", 2},
	} {
		if got, why := winner(test.all, test.keep); got != test.want || why == "" {
			t.Errorf("%s: %d (%s), want %d", name, got, why, test.want)
		}
	}
	for text, want := range map[string]float64{"7": 7, "a\n-1.5e1\n\n": -15, " 3 ": 3} {
		if got, ok := lastNumber(text); !ok || got != want {
			t.Errorf("%q: %g, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "\n", "3\nx", "NaN", "inf", "3 passed"} {
		if got, ok := lastNumber(text); ok {
			t.Errorf("%q: %g", text, got)
		}
	}
}

// Each snapshot and sandbox occurs only once in its family, even if the daemon's answers contradict
// each other.
func TestFamily(t *testing.T) {
	f := familyOf(
		[]origin{{name: "base"}, {name: "own", box: "sb-1", tag: "base"}, {name: "x", tag: "y"},
			{name: "y", tag: "x"}, {name: "sb-1"}, {name: "orphan", box: "sb-gone", tag: "base"}},
		[]origin{{name: "sb-1", tag: "own"}, {name: "sb-2", tag: "base"}, {name: "sb-3", tag: "gone"}},
	)
	seen := map[string]int{}
	f.walk(func(n *treeNode, _ int) { seen[n.Snapshot+"|"+n.Sandbox]++ })
	if len(seen) != 9 {
		t.Errorf("%v", seen)
	}
	for what, n := range seen {
		if n != 1 {
			t.Errorf("%s is there %d times", what, n)
		}
	}
	f.keepLine(sandboxKey("sb-1"))
	var line []string
	f.walk(func(n *treeNode, depth int) { line = append(line, strings.Repeat(" ", depth)+n.name()) })
	if got := strings.Join(line, "\n"); got != "base\n own\n  sb-1" {
		t.Errorf("the line of sb-1:\n%s", got)
	}
	f.keepLine(sandboxKey("sb-none"))
	if len(f.order) != 0 {
		t.Errorf("the line of nothing: %v", f.order)
	}
}
