package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// hardPhrases are phrases that readers often have to read twice. Each has advice for a better
// phrase.
var hardPhrases = []struct{ phrase, instead string }{
	{`by whom`, `name the person or program, and use an active verb`},
	{`to whom`, `name the person or program, and use an active verb`},
	{`(is|are|was|were|be) told of`, `"X tells Y", "Y receives"`},
	{`that who`, `name the noun`},
	{`whoever`, `"every client that", "any process that"`},
	{`everybody`, `"all users", "every client"`},
	{`(is|are|was|were|be) held back`, `"throttled", "delayed"`},
	{`anew`, `"again", "a new …"`},
	{`as a rule`, `"usually"`},
	{`all the same`, `"still", "nevertheless"`},
	{`by turns`, `"interleaved"`},
	{`what is left out`, `"omitted …", with the noun`},
	{`, of which`, `end the sentence, and begin another`},
}

// TestProseReadsOnce checks Go comments and documents.
func TestProseReadsOnce(t *testing.T) {
	patterns := make([]*regexp.Regexp, len(hardPhrases))
	for i, p := range hardPhrases {
		begin := `\b`
		if strings.HasPrefix(p.phrase, ",") {
			begin = ""
		}
		patterns[i] = regexp.MustCompile(`(?i)` + begin + strings.ReplaceAll(p.phrase, " ", `[\s/>*]+`) + `\b`)
	}
	check := func(where, text string) {
		for i, p := range patterns {
			if found := p.FindString(text); found != "" {
				t.Errorf("%s: %q: write %s", where, found, hardPhrases[i].instead)
			}
		}
	}
	for _, s := range sources(t) {
		if s.generated || strings.HasPrefix(s.path, "internal/lint/") {
			continue
		}
		for _, group := range s.file.Comments {
			check(s.fset.Position(group.Pos()).String(), group.Text())
		}
	}
	cmd := exec.Command("git", "ls-files", "*.md")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skip("no git clone here: documents are checked where there is one")
	}
	for _, name := range strings.Fields(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		check(name, string(text))
	}
}
