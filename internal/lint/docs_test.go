package lint

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// document is one Markdown file of the repository.
type document struct {
	path  string // path in this repository
	lines []string
}

// documents reads every Markdown file of the repository.
func documents(t *testing.T) []document {
	t.Helper()
	var all []document
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && isForeign(name) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		all = append(all, document{rel, strings.Split(string(text), "\n")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("found %d Markdown files: the repository has more than that", len(all))
	}
	return all
}

// isForeign reports whether a directory is skipped because it contains output of tools, installed
// packages or test data.
func isForeign(name string) bool {
	return strings.HasPrefix(name, ".") || name == "out" || name == "node_modules" || name == "testdata"
}

// text calls f for every line outside of code blocks. It also passes the line's number to f.
func (d *document) text(f func(number int, line string)) {
	code := false
	for i, line := range d.lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			f(i+1, line)
		}
	}
}

// Paths in documents: targets of relative links, and text in back quotes that begins with the name
// of a folder of this repository.
var (
	linkTarget = regexp.MustCompile(`\]\(([^):#]+)[^):]*\)`)
	quotedPath = regexp.MustCompile("`((?:api|bench|client|cmd|docs|guest|internal|recipes|scripts|test)/[\\w./-]*)`")
)

func TestDocumentsNameFilesThatExist(t *testing.T) {
	checked := 0
	for _, d := range documents(t) {
		d.text(func(number int, line string) {
			var paths []string
			for _, m := range linkTarget.FindAllStringSubmatch(line, -1) {
				paths = append(paths, filepath.Join(filepath.Dir(d.path), m[1]))
			}
			for _, m := range quotedPath.FindAllStringSubmatch(line, -1) {
				paths = append(paths, m[1])
			}
			for _, p := range paths {
				checked++
				if _, err := os.Stat(filepath.Join(root, p)); err != nil {
					t.Errorf("%s:%d: there is no %s", d.path, number, p)
				}
			}
		})
	}
	if checked < 30 {
		t.Errorf("found %d paths in all documents: there are more than that", checked)
	}
}

// headingLink matches a link to a heading. The link may be inline, or be a reference definition.
var headingLink = regexp.MustCompile(`(?:\]\(|^\[[^\]]+\]: )([^):#]*)#([^):\s]+)`)

func TestDocumentsLinkToHeadingsThatExist(t *testing.T) {
	all, checked := documents(t), 0
	there := map[string]bool{}
	for _, d := range all {
		seen := map[string]int{}
		d.text(func(_ int, line string) {
			if title := strings.TrimLeft(line, "#"); title != line {
				a := anchor(title)
				if n := seen[a]; n > 0 {
					there[fmt.Sprintf("%s#%s-%d", d.path, a, n)] = true
				} else {
					there[d.path+"#"+a] = true
				}
				seen[a]++
			}
		})
	}
	for _, d := range all {
		d.text(func(number int, line string) {
			for _, m := range headingLink.FindAllStringSubmatch(line, -1) {
				path := d.path
				if m[1] != "" {
					path = filepath.Join(filepath.Dir(d.path), m[1])
				}
				checked++
				if target := path + "#" + m[2]; !there[target] {
					t.Errorf("%s:%d: there is no heading %s", d.path, number, target)
				}
			}
		})
	}
	if checked < 10 {
		t.Errorf("found %d links to headings: there are more than that", checked)
	}
}

// anchor returns the fragment with which GitHub links to a heading.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(title))
}

// TestReadmeHasTheTestedSession checks that README.md begins with the session that test/integration
// runs.
func TestReadmeHasTheTestedSession(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	session, err := os.ReadFile(filepath.Join(root, "test/integration/testdata/session.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```console\n"+string(session)+"```\n") {
		t.Error("README.md does not have the session of test/integration/testdata/session.txt word for word: change both")
	}
}

// maxProse is the maximum number of characters in a line of prose. Lines in tables and code blocks
// may be longer.
const maxProse = 99

// TestProseIsNarrow checks the length of lines of prose. It skips the results of benchmarks.
func TestProseIsNarrow(t *testing.T) {
	for _, d := range documents(t) {
		if d.path == "bench/results.md" {
			continue
		}
		d.text(func(number int, line string) {
			if n := utf8.RuneCountInString(line); n > maxProse && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d has %d characters: break the line before %d", d.path, number, n, maxProse+1)
			}
		})
	}
}

// TestNetworkAttacksHaveTheirTests checks that every test that docs/network.md names exists.
func TestNetworkAttacksHaveTheirTests(t *testing.T) {
	there := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test() {
				there[f.Name.Name] = true
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/network.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := quotedTest.FindAllStringSubmatch(string(text), -1)
	for _, m := range names {
		if !there[m[1]] {
			t.Errorf("docs/network.md: there is no %s", m[1])
		}
	}
	if len(names) < 20 {
		t.Errorf("found %d tests: the table has more than that", len(names))
	}
}

// quotedTest is the name of a test or a fuzz target.
var quotedTest = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
